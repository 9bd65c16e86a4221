// SPDX-License-Identifier: Apache-2.0
//! Listing of a bucket with many concurrent requests, and lookup of given keys.
//!
//! A bucket returns 1000 keys at a time and only in order, so the key space is divided into spans that are listed in
//! parallel: first at its top folders; then, whenever a request slot is free, half way between the current key of a
//! span and its end. Order and size of an answer are checked. A store that accepts no start key is divided at its top
//! folders only.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use foresee_units::ReadOutcome;
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use object_store::list::PaginatedListOptions;

use super::split::midpoint_key;
use super::{ListContext, ListTotals, Listing, OriginObject, Unreadable, suggest};
use crate::origin::{Client, Failure, ListPage, OriginError, PageObject, Store, object_tag};
use crate::uri::{BucketKind, UriParts};

/// Concurrent requests: S3 accepts thousands per second and prefix, and an answer takes about 0.1 s.
const WIDTH: usize = 32;
/// Concurrent `HEAD` requests, which are small.
const HEAD_WIDTH: usize = 64;
/// From this number of keys on, a listing is tried; fewer keys are looked up in a second or two.
const LIST_FROM: usize = 512;
/// A listing with fewer wanted keys per page is given up: a page costs more than a single lookup, and fewer pages can
/// be requested at once.
const KEYS_PER_PAGE_LEAST: usize = 16;
/// A listing has no deadline, and its caller does not retry.
const ATTEMPTS: u32 = 5;
/// First pause before a retry; doubles, unless the server sends its own.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum pause, even if a server requests a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Every object below the bucket's prefix, in no order.
pub(super) fn list_bucket(client: &Client, context: &ListContext<'_>) -> Result<Listing, OriginError> {
    let store = client.store();
    client.block_on(async {
        let mut listing = Listing::default();
        let is_empty = list_spans(store, context, &mut listing).await?;
        if is_empty { Err(empty_prefix_error(store).await) } else { Ok(listing) }
    })
}

/// The error for a prefix without objects, with the neighbours of the first missing part.
async fn empty_prefix_error(store: &Store) -> OriginError {
    let mut missing = store.prefix().trim_end_matches('/');
    let found = loop {
        if missing.is_empty() {
            break "the bucket has no objects".to_owned();
        }
        let (above, name) = match missing.rsplit_once('/') {
            Some((above, name)) => (above, name),
            None => ("", missing),
        };
        let prefix = if above.is_empty() { String::new() } else { format!("{above}/") };
        let options = PaginatedListOptions { delimiter: Some("/".into()), ..PaginatedListOptions::default() };
        // Without permission to list the level above, there is no suggestion.
        let Ok(page) = store.page_of(&prefix, options).await else {
            break "check the spelling of the prefix".to_owned();
        };
        let folders: Vec<_> = page
            .folders
            .iter()
            .filter_map(|folder| folder.strip_prefix(&prefix))
            .map(|folder| folder.trim_end_matches('/').to_owned())
            .collect();
        if !folders.is_empty() || !page.objects.is_empty() {
            let place = format!("{}/{above}", store.uri().root());
            break format!(
                "{} has {}",
                place.trim_end_matches('/'),
                suggest::closest_names(name, folders, "prefixes")
            );
        }
        missing = above;
    };
    OriginError::Nothing { uri: store.uri().to_string(), found }
}

/// The keys after `after`, up to and including `until`.
#[derive(Debug, Default)]
struct Span {
    level: Level,
    after: Option<String>,
    until: Option<String>,
    /// Continuation token of the server, which is ahead of `after` after an empty page.
    token: Option<String>,
}

/// The keys of a span that are listed.
#[derive(Debug, Default)]
enum Level {
    /// All keys of the store.
    #[default]
    All,
    /// Those without a folder, and the folders.
    Top,
    /// Those with the prefix of this folder.
    Folder(String),
}

/// List all spans; return whether there is no key at all.
async fn list_spans(
    store: &Store,
    context: &ListContext<'_>,
    listing: &mut Listing,
) -> Result<bool, OriginError> {
    let ordered = accepts_start(store);
    let mut ready = vec![Span { level: Level::Top, ..Span::default() }];
    let mut is_empty = true;
    if ordered {
        (ready, is_empty) = first_spans(store, context, listing).await?;
    }
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < WIDTH {
            let Some(span) = ready.pop() else { break };
            running.push(next_page(store, span));
        }
        let Some(answer) = running.next().await else { return Ok(is_empty) };
        let (mut span, page) = answer?;
        context.check_cancelled()?;
        let mut last = None;
        let first = listing.objects.len();
        let mut passed_end = false;
        is_empty &= page.objects.is_empty() && page.folders.is_empty();
        ready.extend(
            page.folders.into_iter().map(|name| Span { level: Level::Folder(name), ..Span::default() }),
        );
        for object in &page.objects {
            let key = object.key.as_str();
            if span.until.as_deref().is_some_and(|until| key > until) {
                passed_end = true;
                continue;
            }
            // Some servers ignore the start, and would list an object in several spans.
            if ordered && span.after.as_deref().is_some_and(|after| key <= after) {
                continue;
            }
            last = last.max(Some(key.to_owned()));
            add_object(store, context, object, listing);
        }
        context.record_step(&listing.objects[first..]);
        if passed_end && ordered {
            continue;
        }
        let Some(token) = page.token.clone() else { continue };
        if page.objects.is_empty() && span.token.as_ref() == Some(&token) {
            let cause = "the listing repeats an empty page without end".to_owned();
            return Err(OriginError::Failed { uri: store.uri().to_string(), cause });
        }
        span.token = Some(token);
        if let Some(last) = last {
            if ordered
                && ready.is_empty()
                && running.len() + 1 < WIDTH
                && let Some(middle) = midpoint_key(&last, span.until.as_deref(), store.prefix())
            {
                ready.push(Span {
                    after: Some(middle.clone()),
                    until: span.until.replace(middle),
                    ..Span::default()
                });
            }
            span.after = Some(last);
        }
        ready.push(span);
    }
}

/// Whether the store lists in order, from any key on.
fn accepts_start(store: &Store) -> bool {
    match store.uri().parts() {
        // Directory buckets (S3 Express) list in no order.
        UriParts::Bucket { kind: BucketKind::S3, name, .. } => !name.contains("--x-s3"),
        UriParts::Bucket { kind: BucketKind::Gcs, .. } => true,
        // Not every version of Azure's interface and not every kind of account has `startFrom`; the hub has none.
        UriParts::Bucket { kind: BucketKind::Azure, .. }
        | UriParts::Repository(_)
        | UriParts::Web { .. }
        | UriParts::Directory(_) => false,
    }
}

/// Divide the bucket at its top folders. A bucket without folders returns its first page of objects instead.
async fn first_spans(
    store: &Store,
    context: &ListContext<'_>,
    listing: &mut Listing,
) -> Result<(Vec<Span>, bool), OriginError> {
    let top = with_retries(store, || {
        store.page(PaginatedListOptions { delimiter: Some("/".into()), ..PaginatedListOptions::default() })
    })
    .await?;
    let mut cuts = top.folders;
    if cuts.is_empty() {
        for object in &top.objects {
            add_object(store, context, object, listing);
        }
        context.record_step(&listing.objects);
        let last = top.objects.iter().map(|object| object.key.as_str()).max();
        let spans = match (top.token, last) {
            (None, _) => Vec::new(),
            (Some(_), last) => vec![Span { after: last.map(str::to_owned), ..Span::default() }],
        };
        let is_empty = spans.is_empty() && last.is_none();
        return Ok((spans, is_empty));
    }
    cuts.sort_unstable();
    let every = cuts.len().div_ceil(2 * WIDTH);
    let mut spans = Vec::new();
    let mut after = None;
    for folder in cuts.into_iter().step_by(every) {
        spans.push(Span { after: after.replace(folder.clone()), until: Some(folder), ..Span::default() });
    }
    spans.push(Span { after, ..Span::default() });
    Ok((spans, false))
}

async fn next_page(store: &Store, span: Span) -> Result<(Span, ListPage), OriginError> {
    let page = with_retries(store, || {
        let options = PaginatedListOptions {
            delimiter: matches!(span.level, Level::Top).then(|| "/".into()),
            // A server would ignore a start next to a token.
            offset: span.after.clone().filter(|_| span.token.is_none()),
            page_token: span.token.clone(),
            ..PaginatedListOptions::default()
        };
        let prefix = match &span.level {
            Level::Folder(prefix) => prefix,
            Level::All | Level::Top => store.prefix(),
        };
        store.page_of(prefix, options)
    })
    .await?;
    Ok((span, page))
}

/// Add an object of a page, unless it is excluded. Placeholders of folders are listed like a directory's folders: on
/// the first level.
fn add_object(store: &Store, context: &ListContext<'_>, object: &PageObject, listing: &mut Listing) {
    let Some(key) = object.key.strip_prefix(store.prefix()).filter(|key| !key.is_empty()) else { return };
    let key = key.as_bytes();
    let is_stand_in = key.ends_with(b"/");
    if (is_stand_in && key[..key.len() - 1].contains(&b'/')) || (context.is_excluded)(key) {
        return;
    }
    let key = key.to_vec();
    if is_stand_in {
        listing.objects.push(OriginObject { key, size: 0, tag: Vec::new() });
        return;
    }
    match store.path(&key) {
        Ok(_) => listing.objects.push(OriginObject { key, size: object.size, tag: object.tag.clone() }),
        Err(cause) => {
            let error = store.bad_key(&key, cause);
            listing.unreadable.push(Unreadable { key, error });
        }
    }
}

/// Size and tag of each of `keys`, in no order.
///
/// Many keys of a bucket are looked up in a listing of their prefix, while that takes fewer requests than single
/// lookups: a page has a thousand keys, but other objects may have the prefix too.
pub(super) fn look_up_each(
    client: &Client,
    keys: &[Vec<u8>],
    context: &ListContext<'_>,
) -> Result<Listing, OriginError> {
    let store = client.store();
    client.block_on(async {
        let mut listing = Listing::default();
        let is_bucket = matches!(store.uri().parts(), UriParts::Bucket { .. } | UriParts::Repository(_));
        if is_bucket && keys.len() >= LIST_FROM {
            list_until_costly(store, keys, context, &mut listing).await?;
        }
        let found: HashSet<&[u8]> = listing.objects.iter().map(|object| object.key.as_slice()).collect();
        let missing: Vec<&Vec<u8>> = keys.iter().filter(|key| !found.contains(key.as_slice())).collect();
        drop(found);
        let mut answers = stream::iter(missing)
            .map(|key| async move { (key, look_up(store, key).await) })
            .buffer_unordered(HEAD_WIDTH);
        while let Some((key, answer)) = answers.next().await {
            context.check_cancelled()?;
            let first = listing.objects.len();
            match answer {
                Ok(found) => listing.objects.push(found),
                Err(error @ (OriginError::Missing { .. } | OriginError::BadKey { .. })) => {
                    listing.unreadable.push(Unreadable { key: key.clone(), error });
                }
                Err(error) => return Err(error),
            }
            context.record_step(&listing.objects[first..]);
        }
        Ok(listing)
    })
}

/// List the prefix for `keys` up to the number of requests that is worthwhile. Without permission to list it finds
/// nothing.
async fn list_until_costly(
    store: &Store,
    keys: &[Vec<u8>],
    context: &ListContext<'_>,
    listing: &mut Listing,
) -> Result<(), OriginError> {
    let wanted: HashSet<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let (pages, is_over_limit) = (AtomicUsize::new(0), AtomicBool::new(false));
    let count = |now| {
        (context.progress)(now);
        let is_costly = pages.fetch_add(1, Ordering::Relaxed) >= keys.len() / KEYS_PER_PAGE_LEAST;
        if is_costly || context.cancel.load(Ordering::Relaxed) {
            is_over_limit.store(true, Ordering::Relaxed);
        }
    };
    let is_excluded = |key: &[u8]| !wanted.contains(key);
    let totals = ListTotals::default();
    let bounded = ListContext {
        totals,
        progress: &count,
        cancel: &is_over_limit,
        uri: context.uri,
        is_excluded: &is_excluded,
    };
    match list_spans(store, &bounded, listing).await {
        Ok(_) | Err(OriginError::Cancelled { .. } | OriginError::Denied { .. }) => {
            context.check_cancelled()?;
        }
        Err(error) => return Err(error),
    }
    context.record_step(&listing.objects);
    listing.unreadable.clear();
    Ok(())
}

async fn look_up(store: &Store, key: &[u8]) -> Result<OriginObject, OriginError> {
    let path = store.path(key).map_err(|cause| store.bad_key(key, cause))?;
    let mut attempt = 0;
    loop {
        match store.head(&path, &Arc::default()).await {
            Ok(meta) => {
                return Ok(OriginObject { key: key.to_vec(), size: meta.size, tag: object_tag(&meta) });
            }
            Err(failure) => wait_or_fail(&mut attempt, failure, store, || store.uri().join(key)).await?,
        }
    }
}

/// Send a request up to five times, if a retry can help.
async fn with_retries<T, F>(store: &Store, mut request: impl FnMut() -> F) -> Result<T, OriginError>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut attempt = 0;
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(failure) => wait_or_fail(&mut attempt, failure, store, || store.uri().to_string()).await?,
        }
    }
}

async fn wait_or_fail(
    attempt: &mut u32,
    failure: Failure,
    store: &Store,
    uri: impl FnOnce() -> String,
) -> Result<(), OriginError> {
    let pause = match failure.outcome {
        ReadOutcome::Throttled { retry_after: Some(pause) } => Duration::from(pause).min(PAUSE_MAX),
        ReadOutcome::Throttled { retry_after: None } | ReadOutcome::Retryable => PAUSE * 2_u32.pow(*attempt),
        _ => return Err(store.error(failure, uri())),
    };
    *attempt += 1;
    if *attempt >= ATTEMPTS {
        return Err(store.error(failure, uri()));
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

#[cfg(test)]
mod process_tests;
