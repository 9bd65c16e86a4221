// SPDX-License-Identifier: Apache-2.0
//! `List Blobs` of Azure: the same pages as `ListObjectsV2`, in another form.
//!
//! Only the listing differs between the two interfaces, as far as a reader needs them.

use std::fmt::Write;

use percent_encoding::percent_decode;

use super::{AFTER_EMPTY, After, Found, PAGE_KEYS_MAX, Page, Query, escape};
use crate::stamp::Stamp;

/// Whether a query string requests a page of a container.
pub(super) fn is_azure(query: &str) -> bool {
    query.split('&').any(|pair| pair == "comp=list")
}

/// Parse a query string; an invalid value is named in the error.
pub(super) fn parse(query: &str) -> Result<Query, String> {
    let mut parsed = Query { max_keys: PAGE_KEYS_MAX, ..Query::default() };
    for (name, value) in query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))) {
        let value: Vec<u8> = percent_decode(value.replace('+', " ").as_bytes()).collect();
        match name {
            "prefix" => parsed.prefix = value,
            "delimiter" => parsed.delimited = value == b"/",
            "marker" => parsed.after = After::from_token(&value)?,
            "maxresults" => {
                let wanted: usize = String::from_utf8_lossy(&value)
                    .parse()
                    .map_err(|_| "maxresults is a number, 1 or more".to_owned())?;
                parsed.max_keys = wanted.min(PAGE_KEYS_MAX);
            }
            "startFrom" => return Err("this testbed has no startFrom".to_owned()),
            _ => {}
        }
    }
    Ok(parsed)
}

/// The page in Azure's XML, whose tags have no quotes.
pub(super) fn to_xml(page: &Page, container: &str) -> String {
    let mut blobs = String::new();
    for found in &page.found {
        let _ = match found {
            Found::Object(key, facts) => write!(
                blobs,
                "<Blob><Name>{}</Name><Properties><Last-Modified>{}</Last-Modified><Etag>{}</Etag>\
                 <Content-Length>{}</Content-Length><Content-Type>application/octet-stream</Content-Type>\
                 </Properties></Blob>",
                escape(&String::from_utf8_lossy(key)),
                Stamp::from_unix(facts.modified).http(),
                escape(facts.tag.trim_matches('"')),
                facts.size,
            ),
            Found::Prefix(key) => {
                let name = escape(&String::from_utf8_lossy(key));
                write!(blobs, "<BlobPrefix><Name>{name}</Name></BlobPrefix>")
            }
        };
    }
    let token = page.found.last().filter(|_| page.is_truncated).map(Found::token).unwrap_or_default();
    document(container, &blobs, &token)
}

/// A page without blobs whose marker leads to the page that `query` requests; `None` if `query` has such a marker.
pub(super) fn empty_page(query: &str) -> Option<String> {
    let marker = query.split('&').find_map(|pair| pair.strip_prefix("marker="));
    let token = match marker {
        Some(token) if token.starts_with(AFTER_EMPTY) => return None,
        Some(token) => percent_decode(token.as_bytes()).decode_utf8_lossy().into_owned(),
        None => "k".to_owned(),
    };
    Some(document("", "", &format!("{AFTER_EMPTY}{token}")))
}

fn document(container: &str, blobs: &str, marker: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ContainerName=\"{}\"><Blobs>{blobs}</Blobs>\
         <NextMarker>{marker}</NextMarker></EnumerationResults>",
        escape(container)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Facts;

    #[test]
    fn a_page_has_the_form_of_azure() {
        let query =
            parse("restype=container&comp=list&prefix=a+b%2F&delimiter=%2F&maxresults=2").expect("valid");
        assert_eq!((query.prefix.as_slice(), query.delimited, query.max_keys), (&b"a b/"[..], true, 2));
        let facts = Facts { tag: "\"x\"".to_owned(), size: 7, modified: 0 };
        let found = vec![Found::Object(b"a b/1".to_vec(), facts), Found::Prefix(b"a b/c/".to_vec())];
        let xml = to_xml(&Page { found, is_truncated: true }, "c");
        for part in
            ["<Name>a b/1</Name>", "<Etag>x</Etag>", "<BlobPrefix><Name>a b/c/</Name>", "<NextMarker>p"]
        {
            assert!(xml.contains(part), "{part} in {xml}");
        }
        assert!(is_azure("restype=container&comp=list") && !is_azure("list-type=2"));
    }
}
