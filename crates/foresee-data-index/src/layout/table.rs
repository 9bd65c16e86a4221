// SPDX-License-Identifier: Apache-2.0
//! The rows of a table: paths and URIs as written by a user, converted to one base URI and keys below it.
//!
//! It is separate from listings, which find objects: here each is named individually, in any order and
//! repeatedly. Each object is in the index once, so rows that name it share its bytes.

use percent_encoding::percent_decode;

use crate::error::IndexError;
use crate::uri::{redact_uri, shortened};

/// Where the objects of a table are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableObjects {
    /// The folder or prefix that contains all objects, with `/` at its end.
    pub base: String,
    /// Key of each object below `base`, in the order in which rows first name them.
    pub keys: Vec<Vec<u8>>,
    /// Indices into `keys` in the order of their bytes.
    pub by_key: Vec<usize>,
    /// For each sample its objects, as indices into `keys`; `None` if each row names the next one.
    pub picks: Option<Vec<u64>>,
}

/// One column of a table: its name for messages, and a path or URI per row.
#[derive(Clone, Debug)]
pub struct TableColumn {
    /// The name that the user knows.
    pub name: String,
    /// Any bytes, one per sample.
    pub rows: Vec<Vec<u8>>,
}

impl TableObjects {
    /// The objects of the rows of `columns`, which must be equally long: a sample has one object of each column.
    ///
    /// Relative rows are below `root`, which is absolute or a URI. `resolve` returns the real path of a local
    /// path that contains `..`, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`IndexError::Row`] for the first row that does not name an object, or names one in another store than the
    /// first row.
    pub fn of(
        root: &str,
        columns: &[TableColumn],
        mut resolve: impl FnMut(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<Self, IndexError> {
        let samples = columns.first().map_or(0, |column| column.rows.len());
        let mut paths: Vec<Vec<u8>> = Vec::with_capacity(samples * columns.len());
        let mut store: Option<StoreKind> = None;
        for row in 0..samples {
            for column in columns {
                let text = &column.rows[row];
                let fault = |cause: String| IndexError::Row {
                    column: column.name.clone(),
                    row: row as u64,
                    value: redact_uri(&shortened(text)),
                    cause,
                };
                let (found, path) =
                    locate_row(root, text, &mut resolve).map_err(|cause| fault(cause.to_owned()))?;
                match &store {
                    None => store = Some(found),
                    Some(first) if *first == found => {}
                    Some(first) => return Err(fault(first.differs_from(&found))),
                }
                paths.push(path);
            }
        }
        let store = store.ok_or_else(|| IndexError::Empty {
            uri: redact_uri(root),
            ignored: 0,
            layout: "table".to_owned(),
        })?;
        let folder = common_folder(&paths);
        for path in &mut paths {
            path.drain(..folder.len());
        }
        let base = format!("{}{}", store.prefix(), String::from_utf8_lossy(&folder));
        let (keys, by_key, picks) = unique(paths);
        Ok(Self { base, keys, by_key, picks })
    }
}

/// A file system, bucket or web server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StoreKind {
    Local,
    /// Scheme and name.
    Bucket(&'static str, String),
    Web(String),
}

impl StoreKind {
    fn prefix(&self) -> String {
        match self {
            Self::Local => String::new(),
            Self::Bucket(scheme, name) => format!("{scheme}://{name}/"),
            Self::Web(server) => format!("{server}/"),
        }
    }

    fn differs_from(&self, other: &Self) -> String {
        let shown = |store: &Self| match store {
            Self::Local => "a local file".to_owned(),
            store => format!("in {}", store.prefix()),
        };
        format!(
            "it is {}, the first row is {}; a data set has one store: make one data set per store and join them with \
             torch.utils.data.ConcatDataset",
            shown(other),
            shown(self)
        )
    }
}

/// The store of a row, and its path there: from the root of the file system, without a leading slash in other
/// stores.
fn locate_row(
    root: &str,
    text: &[u8],
    resolve: &mut impl FnMut(&[u8]) -> Option<Vec<u8>>,
) -> Result<(StoreKind, Vec<u8>), &'static str> {
    if text.is_empty() {
        return Err("the cell is empty; name an object, or leave the row out");
    }
    if text.contains(&0) {
        return Err("a zero byte is in it, which no path has");
    }
    let Some((scheme, rest)) = scheme_of(text) else {
        if text.starts_with(b"/") {
            return Ok((StoreKind::Local, local(text, resolve)?));
        }
        let (mut root_left, mut text) =
            (root.trim_end_matches('/'), text.strip_prefix(b"./").unwrap_or(text));
        // A bucket has no symbolic links; for a path the file system resolves `..`.
        while !root.starts_with('/') && text.starts_with(b"../") {
            let above = root_left.rsplit_once('/').map(|(above, _)| above);
            root_left =
                above.filter(|above| !above.ends_with('/')).ok_or("its .. leads out of the bucket")?;
            text = &text[3..];
        }
        let mut whole = Vec::with_capacity(root_left.len() + 1 + text.len());
        whole.extend_from_slice(root_left.as_bytes());
        whole.push(b'/');
        whole.extend_from_slice(text);
        return if scheme_of(&whole).is_some() || whole.starts_with(b"/") {
            locate_row(root, &whole, resolve)
        } else {
            Err("root= is neither absolute nor a URI")
        };
    };
    if scheme.eq_ignore_ascii_case(b"file") {
        return Ok((StoreKind::Local, local(&percent_decode(rest).collect::<Vec<u8>>(), resolve)?));
    }
    let slashes = rest.iter().enumerate().filter(|&(_, &byte)| byte == b'/');
    let name_end = slashes.map(|(at, _)| at).nth(parts_of_name(scheme, rest) - 1).unwrap_or(rest.len());
    let name = String::from_utf8(rest[..name_end].to_vec()).map_err(|_| "its bucket or host is no text")?;
    let path = rest.get(name_end + 1..).unwrap_or_default();
    if name.is_empty() || path.is_empty() || path.ends_with(b"/") {
        return Err("it names no object; write a URI such as s3://bucket/folder/name");
    }
    if name.split('/').next().is_some_and(|first| first.contains('@')) {
        return Err("it carries a user name; list plain URIs and pass credentials as storage_options=");
    }
    if let Some(scheme) = bucket_scheme(scheme) {
        return Ok((StoreKind::Bucket(scheme, name), path.to_vec()));
    }
    if !(scheme.eq_ignore_ascii_case(b"http") || scheme.eq_ignore_ascii_case(b"https")) {
        return Err(
            "its scheme is not supported; use a path, file://, s3://, gs://, az://, hf://, http:// or https://",
        );
    }
    if path.contains(&b'?') || name.contains('?') {
        return Err("it carries a query, and an index stores no presigned parts; list plain URIs");
    }
    let scheme = if scheme.len() == 5 { "https" } else { "http" };
    Ok((StoreKind::Web(format!("{scheme}://{name}")), path.to_vec()))
}

/// The scheme of a bucket as an index stores it, or `None` for other schemes.
fn bucket_scheme(scheme: &[u8]) -> Option<&'static str> {
    match scheme.to_ascii_lowercase().as_slice() {
        b"s3" | b"s3a" => Some("s3"),
        b"gs" | b"gcs" => Some("gs"),
        b"hf" => Some("hf"),
        b"az" | b"azure" | b"abfs" | b"abfss" | b"adl" | b"wasb" | b"wasbs" => Some("az"),
        _ => None,
    }
}

/// Number of parts of a bucket's, a host's or a repository's name.
fn parts_of_name(scheme: &[u8], rest: &[u8]) -> usize {
    let has_kind = [&b"datasets/"[..], b"models/", b"spaces/"].iter().any(|kind| rest.starts_with(kind));
    match scheme.eq_ignore_ascii_case(b"hf") {
        false => 1,
        true if has_kind => 3,
        true => 2,
    }
}

/// Scheme and rest of a URI; `None` for a path.
fn scheme_of(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| !(byte.is_ascii_alphanumeric() || b"+-.".contains(byte)))?;
    let rest = text[end..].strip_prefix(b"://")?;
    text.first().is_some_and(u8::is_ascii_alphabetic).then_some((&text[..end], rest))
}

/// An absolute path without empty parts, `.` and `..`.
fn local(path: &[u8], resolve: &mut impl FnMut(&[u8]) -> Option<Vec<u8>>) -> Result<Vec<u8>, &'static str> {
    if !path.starts_with(b"/") {
        return Err("a file URI is written file:///absolute/path");
    }
    if path.ends_with(b"/") {
        return Err("it names a folder; name the file in it");
    }
    let is_plain = path[1..].split(|&byte| byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."));
    if is_plain {
        return Ok(path.to_vec());
    }
    let parts: Vec<&[u8]> =
        path.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    let above = parts.iter().rposition(|part| *part == b"..").map_or(0, |last| last + 1);
    let mut plain = match above {
        0 => Vec::new(),
        _ => resolve(&[b"/", parts[..above].join(&b'/').as_slice()].concat())
            .ok_or("the folder that its .. leads to does not exist")?,
    };
    while plain.ends_with(b"/") {
        plain.pop();
    }
    if above == parts.len() {
        return Err("it names a folder; name the file in it");
    }
    for part in &parts[above..] {
        plain.push(b'/');
        plain.extend_from_slice(part);
    }
    Ok(plain)
}

/// The longest common folder of all paths, with its `/`, that is valid UTF-8.
fn common_folder(paths: &[Vec<u8>]) -> Vec<u8> {
    let parent = |path: &[u8]| path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let first = paths.first().map_or(&[][..], |path| &path[..parent(path)]);
    let mut len = first.len();
    for path in paths {
        while !path.starts_with(&first[..len]) {
            len = parent(&first[..len - 1]);
        }
    }
    let text = first[..len].utf8_chunks().next().map_or(0, |chunk| chunk.valid().len());
    first[..if text == len { len } else { parent(&first[..text]) }].to_vec()
}

/// Each path once, their order, and the index of each input; `None` if no path is repeated.
fn unique(paths: Vec<Vec<u8>>) -> (Vec<Vec<u8>>, Vec<usize>, Option<Vec<u64>>) {
    if paths.windows(2).all(|pair| pair[0] < pair[1]) {
        let sorted = (0..paths.len()).collect();
        return (paths, sorted, None);
    }
    let mut sorted: Vec<usize> = (0..paths.len()).collect();
    sorted.sort_unstable_by(|&one, &other| paths[one].cmp(&paths[other]).then(one.cmp(&other)));
    // The first occurrence of each path.
    let mut first: Vec<usize> = (0..paths.len()).collect();
    for pair in sorted.windows(2) {
        if paths[pair[0]] == paths[pair[1]] {
            first[pair[1]] = first[pair[0]];
        }
    }
    if first.iter().enumerate().all(|(at, &locate_row)| at == locate_row) {
        return (paths, sorted, None);
    }
    sorted.retain(|&at| first[at] == at);
    let mut numbers = vec![0_u64; paths.len()];
    let mut keys = Vec::new();
    for (at, path) in paths.into_iter().enumerate() {
        if first[at] == at {
            numbers[at] = keys.len() as u64;
            keys.push(path);
        } else {
            numbers[at] = numbers[first[at]];
        }
    }
    for at in &mut sorted {
        *at = usize::try_from(numbers[*at]).expect("an index in memory");
    }
    (keys, sorted, Some(numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(root: &str, rows: &[&str]) -> Result<TableObjects, IndexError> {
        let column = TableColumn {
            name: "path".to_owned(),
            rows: rows.iter().map(|row| row.as_bytes().to_vec()).collect(),
        };
        TableObjects::of(root, &[column], |path| (path == b"/data/csv/..").then(|| b"/data".to_vec()))
    }

    fn objects_of(root: &str, rows: &[&str]) -> (String, Vec<String>, Option<Vec<u64>>) {
        let TableObjects { base, keys, by_key, picks } = objects(root, rows).expect("sound rows");
        assert_eq!(by_key.len(), keys.len());
        assert!(by_key.windows(2).all(|pair| keys[pair[0]] < keys[pair[1]]));
        (base, keys.into_iter().map(|key| String::from_utf8(key).expect("text")).collect(), picks)
    }

    #[test]
    fn relative_rows_are_below_the_root_and_the_base_is_the_common_folder() {
        let (base, keys, picks) = objects_of("/data/csv", &["b/2.jpg", "./b//1.jpg", "/data/csv/b/x/3.jpg"]);
        assert_eq!((base.as_str(), picks), ("/data/csv/b/", None));
        assert_eq!(keys, ["2.jpg", "1.jpg", "x/3.jpg"]);
        let (base, keys, _) = objects_of("/data/csv", &["../images/1.jpg", "file:///data/a%20b.jpg"]);
        assert_eq!((base.as_str(), keys), ("/data/", vec!["images/1.jpg".to_owned(), "a b.jpg".to_owned()]));
        let (base, keys, _) = objects_of("s3://bucket/csv/v1/", &["../../train/1.jpg", "../2.jpg"]);
        assert_eq!((base.as_str(), keys.concat().as_str()), ("s3://bucket/", "train/1.jpgcsv/2.jpg"));
        assert!(objects("s3://bucket/csv", &["../../a"]).is_err());
        let (base, keys, _) = objects_of("s3://bucket/train", &["a//1.jpg", "S3A://bucket/val/2.jpg"]);
        assert_eq!((base.as_str(), keys.concat().as_str()), ("s3://bucket/", "train/a//1.jpgval/2.jpg"));
        let (base, keys, _) = objects_of("gcs://bucket/train", &["1.jpg", "gs://bucket/val/2.jpg"]);
        assert_eq!((base.as_str(), keys.concat().as_str()), ("gs://bucket/", "train/1.jpgval/2.jpg"));
        let (base, keys, _) = objects_of("hf://datasets/me/set@v1", &["a/1.jpg", "b/2.jpg"]);
        assert_eq!((base.as_str(), keys.concat().as_str()), ("hf://datasets/me/set@v1/", "a/1.jpgb/2.jpg"));
    }

    #[test]
    fn an_object_named_by_several_rows_is_stored_once() {
        let (_, keys, picks) = objects_of("/d", &["b", "a", "b", "./a", "c"]);
        assert_eq!(keys, ["b", "a", "c"]);
        assert_eq!(picks, Some(vec![0, 1, 0, 1, 2]));
    }

    #[test]
    fn a_folder_that_is_not_utf_8_is_part_of_the_keys() {
        let rows = vec![b"/d/\xff/1".to_vec(), b"/d/\xff/2".to_vec()];
        let objects =
            TableObjects::of("/", &[TableColumn { name: String::new(), rows }], |_| None).expect("sound");
        assert_eq!((objects.base.as_str(), objects.keys[1].as_slice()), ("/d/", &b"\xff/2"[..]));
    }

    #[test]
    fn an_invalid_row_is_refused_with_its_number_and_value() {
        for (row, cause) in [
            ("", "is empty"),
            ("a/", "folder"),
            ("../..", "does not exist"),
            ("..", "folder"),
            ("s3://bucket", "no object"),
            ("https://h/a?sig=secret", "query"),
            ("ftp://b/a", "scheme"),
            ("gs://b/a", "one store"),
            ("s3://b/a", "one store"),
        ] {
            let error = objects("/data/csv", &["x", row]).expect_err(row).to_string();
            assert!(error.starts_with("path, row 1: ") && error.contains(cause), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
