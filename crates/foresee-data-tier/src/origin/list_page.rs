// SPDX-License-Identifier: Apache-2.0
//! One page of a bucket's listing, parsed from the store's XML: S3's, which Google has too, or Azure's.
//!
//! The store client would refuse a whole page for one key with an empty part or a control character, drop the slash
//! of a folder placeholder, and accept any other document as an empty list.

use object_store::ObjectMeta;
use object_store::path::Path;
use percent_encoding::percent_decode_str;
use quick_xml::events::{BytesStart, Event};

use super::tag::object_tag;

/// The body that the client receives in place of a page that is parsed here: an empty list. The clients ignore the
/// name of the root; Azure's needs the element in it.
pub(super) const NO_OBJECTS: &[u8] = b"<ListBucketResult><Blobs></Blobs></ListBucketResult>";

/// The elements that are parsed.
const NAMES: [&str; 19] = [
    "ListBucketResult",
    "Contents",
    "Key",
    "Size",
    "ETag",
    "LastModified",
    "CommonPrefixes",
    "Prefix",
    "NextContinuationToken",
    "EnumerationResults",
    "Blobs",
    "Blob",
    "BlobPrefix",
    "Name",
    "Properties",
    "Etag",
    "Content-Length",
    "ResourceType",
    "NextMarker",
];

/// Maximum length of an unknown document that is searched for a title.
const TITLE_WITHIN: usize = 4096;

/// A page of a bucket's keys, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ListPage {
    pub(crate) objects: Vec<PageObject>,
    /// Prefixes whose keys were not listed; each ends in the delimiter.
    pub(crate) folders: Vec<String>,
    /// Token of the next page.
    pub(crate) token: Option<String>,
}

/// An object of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PageObject {
    /// The full key, with the prefix.
    pub(crate) key: String,
    pub(crate) size: u64,
    pub(crate) tag: Vec<u8>,
}

/// Why a document is not a page of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoPage {
    /// HTML, and its title.
    Html(Option<String>),
    /// Another or broken document.
    Other(String),
}

impl NoPage {
    /// The reason for a document that is not valid JSON.
    pub(super) fn of_json(document: &[u8], error: &dyn std::fmt::Display) -> Self {
        match str::from_utf8(document).ok().filter(|text| is_html(text)) {
            Some(html) => Self::Html(title(html)),
            None => Self::Other(format!("the list is broken: {error}")),
        }
    }
}

/// Parse a page.
pub(super) fn read(document: &[u8]) -> Result<ListPage, NoPage> {
    let Ok(text) = str::from_utf8(document) else {
        return Err(NoPage::Other("the list is not UTF-8".to_owned()));
    };
    if is_html(text) {
        return Err(NoPage::Html(title(text)));
    }
    let broken = |error: &dyn std::fmt::Display| NoPage::Other(format!("the list is broken: {error}"));
    let mut reader = quick_xml::Reader::from_str(text);
    let (mut path, mut value) = (Vec::<&'static str>::new(), String::new());
    let (mut page, mut object) = (ListPage::default(), Fields::default());
    let (mut is_list, mut is_encoded) = (false, false);
    loop {
        match reader.read_event().map_err(|error| broken(&error))? {
            Event::Start(tag) => {
                let name = tag.local_name();
                path.push(
                    NAMES.iter().find(|known| known.as_bytes() == name.as_ref()).map_or("", |known| known),
                );
                is_list |= path == ["ListBucketResult"] || path == ["EnumerationResults"];
                is_encoded = is_percent_encoded(&tag);
                value.clear();
            }
            Event::Text(part) => value.push_str(&part.decode().map_err(|error| broken(&error))?),
            Event::CData(part) => value.push_str(&part.decode().map_err(|error| broken(&error))?),
            Event::GeneralRef(name) => value.push(letter(&name).map_err(|error| broken(&error))?),
            Event::End(_) => {
                if std::mem::take(&mut is_encoded) {
                    value = percent_decode_str(&value).decode_utf8_lossy().into_owned();
                }
                match path[..] {
                    ["ListBucketResult", "Contents"] | ["EnumerationResults", "Blobs", "Blob"] => {
                        page.objects
                            .push(std::mem::take(&mut object).object().map_err(|what| broken(&what))?);
                    }
                    ["ListBucketResult", "Contents", field]
                    | ["EnumerationResults", "Blobs", "Blob", field]
                    | ["EnumerationResults", "Blobs", "Blob", "Properties", field] => {
                        object.set(field, std::mem::take(&mut value));
                    }
                    ["ListBucketResult", "CommonPrefixes", "Prefix"]
                    | ["EnumerationResults", "Blobs", "BlobPrefix", "Name"] => {
                        page.folders.push(std::mem::take(&mut value));
                    }
                    ["ListBucketResult", "NextContinuationToken"] | ["EnumerationResults", "NextMarker"]
                        if !value.is_empty() =>
                    {
                        page.token = Some(std::mem::take(&mut value));
                    }
                    _ => {}
                }
                path.pop();
                value.clear();
            }
            Event::Eof if is_list && path.is_empty() => return Ok(page),
            Event::Eof => return Err(NoPage::Other("it is no list of a bucket".to_owned())),
            _ => {}
        }
    }
}

/// Whether Azure has percent-encoded a name with characters that XML does not allow.
fn is_percent_encoded(tag: &BytesStart<'_>) -> bool {
    matches!(tag.try_get_attribute("Encoded"), Ok(Some(encoded)) if encoded.value.as_ref() == b"true")
}

/// The fields of an object's element.
#[derive(Default)]
struct Fields {
    key: Option<String>,
    size: Option<String>,
    etag: Option<String>,
    modified: Option<String>,
    is_directory: bool,
}

impl Fields {
    fn set(&mut self, name: &str, value: String) {
        let field = match name {
            "Key" | "Name" => &mut self.key,
            "Size" | "Content-Length" => &mut self.size,
            "ETag" | "Etag" => &mut self.etag,
            // Directories of Data Lake accounts are listed among the objects.
            "ResourceType" => {
                self.is_directory = value == "directory";
                return;
            }
            "LastModified" => &mut self.modified,
            _ => return,
        };
        *field = Some(value);
    }

    fn object(self) -> Result<PageObject, &'static str> {
        let mut key = self.key.ok_or("an object has no key")?;
        if self.is_directory {
            key.push('/');
        }
        let size = self.size.and_then(|size| size.trim().parse().ok()).ok_or("an object has no size")?;
        let meta = ObjectMeta {
            location: Path::ROOT,
            // An unknown time is 1970: the object then has no tag unless it has an ETag.
            last_modified: self.modified.and_then(|date| date.trim().parse().ok()).unwrap_or_default(),
            size,
            e_tag: self.etag,
            version: None,
        };
        Ok(PageObject { key, size, tag: object_tag(&meta) })
    }
}

/// The character of a reference such as `&amp;` or `&#10;`. Stores send control characters as references, although
/// XML 1.0 forbids them.
fn letter(name: &[u8]) -> Result<char, &'static str> {
    let unknown = "an unknown reference";
    let name = str::from_utf8(name).map_err(|_| unknown)?;
    let code = match name {
        "amp" => return Ok('&'),
        "lt" => return Ok('<'),
        "gt" => return Ok('>'),
        "quot" => return Ok('"'),
        "apos" => return Ok('\''),
        _ => name.strip_prefix('#').ok_or(unknown)?,
    };
    let code = match code.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => code.parse(),
    };
    code.ok().and_then(char::from_u32).ok_or(unknown)
}

fn is_html(text: &str) -> bool {
    let start: String = text.trim_start().chars().take(15).collect::<String>().to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html")
}

fn title(text: &str) -> Option<String> {
    let within: String = text.chars().take(TITLE_WITHIN).collect();
    let from = within.to_ascii_lowercase().find("<title>")? + "<title>".len();
    let title = within[from..].split('<').next()?.trim();
    (!title.is_empty()).then(|| title.chars().filter(|letter| !letter.is_control()).take(80).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: &str = "<LastModified>2026-01-02T03:04:05.000Z</LastModified>";

    fn page(inside: &str) -> Result<ListPage, NoPage> {
        read(
            format!("<?xml version='1.0'?><ListBucketResult xmlns='x'>{inside}</ListBucketResult>")
                .as_bytes(),
        )
    }

    #[test]
    fn keys_are_unchanged_from_the_store() {
        for (written, key) in [
            ("a//b", "a//b"),
            ("a/./b", "a/./b"),
            ("../a", "../a"),
            ("marker/", "marker/"),
            (" spaced ", " spaced "),
            ("a&#10;b&#x1;&#xe9;é", "a\nb\u{1}éé"),
            ("&lt;&amp;&gt;&quot;&apos;", "<&>\"'"),
            ("<![CDATA[<b>]]>", "<b>"),
        ] {
            let found = page(&format!("<Contents><Key>{written}</Key><Size>3</Size>{LATE}</Contents>"))
                .expect("a page");
            let tag = b"last-modified:1767323045".to_vec();
            assert_eq!(found.objects, [PageObject { key: key.to_owned(), size: 3, tag }], "{written}");
        }
    }

    #[test]
    fn a_page_has_folders_tags_and_a_token_without_owners() {
        let found = page(&format!(
            "<Prefix>p/</Prefix><Contents><Key>p/a</Key><ETag>&quot;1&quot;</ETag><Size>0</Size>{LATE}\
             <Owner><ID>me</ID></Owner></Contents><CommonPrefixes><Prefix>p/b/</Prefix></CommonPrefixes>\
             <NextContinuationToken>on</NextContinuationToken>"
        ));
        let found = found.expect("a page");
        assert_eq!(
            (found.objects[0].key.as_str(), found.objects[0].tag.as_slice()),
            ("p/a", b"\"1\"".as_slice())
        );
        assert_eq!((found.folders, found.token), (vec!["p/b/".to_owned()], Some("on".to_owned())));
        assert_eq!(page(""), Ok(ListPage::default()));
    }

    #[test]
    fn a_page_of_azure_has_the_tags_of_its_headers_and_marks_directories() {
        let blob = |name: &str, kind: &str| {
            format!(
                "<Blob><Name{name}</Name><Properties><Etag>0x1</Etag>{kind}<Content-Length>5</Content-Length>\
                 </Properties></Blob>"
            )
        };
        let inside = [
            blob(">a/1", ""),
            blob(" Encoded=\"true\">a%EF%BF%BF", ""),
            blob(">a", "<ResourceType>directory</ResourceType>"),
            "<BlobPrefix><Name>b/</Name></BlobPrefix>".to_owned(),
        ];
        let found = read(
            format!(
                "<EnumerationResults><Blobs>{}</Blobs><NextMarker>on</NextMarker></EnumerationResults>",
                inside.concat()
            )
            .as_bytes(),
        )
        .expect("a page");
        let object = |key: &str| PageObject { key: key.to_owned(), size: 5, tag: b"\"0x1\"".to_vec() };
        assert_eq!(found.objects, [object("a/1"), object("a\u{ffff}"), object("a/")]);
        assert_eq!((found.folders, found.token), (vec!["b/".to_owned()], Some("on".to_owned())));
        assert_eq!(read(b"<EnumerationResults><NextMarker/></EnumerationResults>"), Ok(ListPage::default()));
    }

    #[test]
    fn another_document_is_not_an_empty_list() {
        let html = |title: Option<&str>| Err(NoPage::Html(title.map(str::to_owned)));
        assert_eq!(read(b"<html><body>Log in</body></html>"), html(None));
        assert_eq!(read(b"\n<!DOCTYPE html><title> Console </title>"), html(Some("Console")));
        for other in
            [&b""[..], b"{}", b"<Error><Code>x</Code></Error>", b"<ListBucketResult>", b"\xff", b"<a></b>"]
        {
            assert!(matches!(read(other), Err(NoPage::Other(_))), "{other:?}");
        }
        for broken in
            ["<Contents><Size>3</Size></Contents>", "<Contents><Key>a</Key><Size>-3</Size></Contents>"]
        {
            assert!(matches!(page(broken), Err(NoPage::Other(_))), "{broken}");
        }
    }
}
