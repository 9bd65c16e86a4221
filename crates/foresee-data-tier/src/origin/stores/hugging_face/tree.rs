// SPDX-License-Identifier: Apache-2.0
//! Listings of a repository: the pages of the hub's tree, as JSON.

use std::sync::Arc;

use foresee_units::ReadOutcome;
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody, HttpResponse};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::LINK;
use serde::Deserialize;

use crate::origin::fault::{Attempt, Failure};
use crate::origin::list_page::{ListPage, NoPage, PageObject};

/// Characters of a path that a URL has unescaped.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The tree of one revision of a repository.
#[derive(Clone, Debug)]
pub(crate) struct RepositoryTree {
    http: HttpClient,
    /// URL of the root.
    root: String,
}

/// An entry of a page.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    /// Git's name of the content.
    #[serde(default)]
    oid: String,
    /// A file that Git only has a pointer to.
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    /// SHA-256 of the content.
    oid: String,
    size: u64,
}

impl RepositoryTree {
    pub(super) const fn new(http: HttpClient, root: String) -> Self {
        Self { http, root }
    }

    /// One page below `prefix`; with `top` without the content of folders. `token` is the query of the page.
    pub(crate) async fn page(
        &self,
        prefix: &str,
        top: bool,
        token: Option<&str>,
        attempt: &Arc<Attempt>,
    ) -> Result<ListPage, Failure> {
        let folder = utf8_percent_encode(prefix.trim_end_matches('/'), PATH).to_string();
        let slash = if folder.is_empty() { "" } else { "/" };
        let query = token.map_or_else(|| format!("recursive={}", !top), str::to_owned);
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = format!("{}{slash}{folder}?{query}", self.root)
            .parse()
            .map_err(|_| Failure::answer(ReadOutcome::Failed, None, "no URL can express the prefix"))?;
        request.extensions_mut().insert(Arc::clone(attempt));
        let answer = self.http.execute(request).await;
        let answer = answer.map_err(|_| Failure::of_attempt(attempt))?;
        if !answer.status().is_success() {
            return Err(Failure::of_attempt(attempt));
        }
        let mut page = Failure::parse_page_by(attempt, read)?;
        page.token = next_query(&answer);
        Ok(page)
    }
}

/// Parse a page. Folders are those of a tree without their content.
fn read(document: &[u8]) -> Result<ListPage, NoPage> {
    let entries: Vec<Entry> =
        serde_json::from_slice(document).map_err(|error| NoPage::of_json(document, &error))?;
    let mut page = ListPage::default();
    for entry in entries {
        match entry.kind.as_str() {
            "directory" => page.folders.push(format!("{}/", entry.path)),
            "file" => {
                let (oid, size) = entry.lfs.map_or((entry.oid, entry.size), |large| (large.oid, large.size));
                let tag = if oid.is_empty() { Vec::new() } else { format!("\"{oid}\"").into_bytes() };
                page.objects.push(PageObject { key: entry.path, size, tag });
            }
            _ => {} // Submodules.
        }
    }
    Ok(page)
}

/// The query of the next page, from the `Link` header.
fn next_query(answer: &HttpResponse) -> Option<String> {
    let link = answer.headers().get(LINK)?.to_str().ok()?;
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let url = next.split_once('<')?.1.split_once('>')?.0;
    Some(url.split_once('?')?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_files_with_the_hubs_tags_and_folders() {
        let page = read(
            br#"[{"type": "directory", "oid": "d1", "size": 0, "path": "a"},
                 {"type": "file", "oid": "b2", "size": 3, "path": "x.txt", "lastCommit": null},
                 {"type": "file", "oid": "b3", "size": 130, "path": "y", "lfs": {"oid": "c4", "size": 9, "pointerSize": 130}}]"#,
        )
        .expect("a page");
        let object = |key: &str, size, tag: &str| PageObject { key: key.to_owned(), size, tag: tag.into() };
        assert_eq!(page.objects, [object("x.txt", 3, "\"b2\""), object("y", 9, "\"c4\"")]);
        assert_eq!((page.folders, page.token), (vec!["a/".to_owned()], None));
        assert!(matches!(read(b"<html><title>Log in</title></html>"), Err(NoPage::Html(_))));
        assert!(matches!(read(b"{}"), Err(NoPage::Other(_))));
    }

    #[test]
    fn the_next_page_is_in_the_link_header() {
        let mut answer = HttpResponse::new(Vec::new().into());
        assert_eq!(next_query(&answer), None);
        let link = "<https://hub/api/x?recursive=true&cursor=Zg%3D%3D>; rel=\"next\"";
        answer.headers_mut().insert(LINK, link.parse().expect("a header"));
        assert_eq!(next_query(&answer).as_deref(), Some("recursive=true&cursor=Zg%3D%3D"));
    }
}
