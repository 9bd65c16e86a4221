// SPDX-License-Identifier: Apache-2.0
//! Listing of a bucket with many requests at once, and of a given list of URLs at a web server.
//!
//! A bucket returns 1000 keys at a time and only in order, so the key space is cut into spans that are listed in
//! parallel: first at its top folders, then, whenever a request slot is free, half way between the current key of a
//! span and its end. Order and size of an answer are checked.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use foresee_units::ReadOutcome;
use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use object_store::list::PaginatedListOptions;

use super::split::between;
use super::{Listing, OriginObject, Sums, Tally, Unreadable, nearby};
use crate::origin::{Client, Door, Failure, ListPage, OriginError, PageObject, object_tag};
use crate::uri::Place;

/// Requests under way at once: S3 takes thousands per second and prefix, one answer takes about 0.1 s.
const WIDTH: usize = 32;
/// `HEAD` requests under way at once; they are small.
const HEAD_WIDTH: usize = 64;
/// From so many named objects on a listing is tried: fewer are asked for in a second or two.
const LIST_FROM: usize = 512;
/// A listing that brings fewer wanted keys per page than this is given up: pages cost more than single questions, and only
/// as many are under way at once as a listing can be cut into.
const KEYS_PER_PAGE_LEAST: usize = 16;
/// A listing has no deadline and nobody above it to try again.
const ATTEMPTS: u32 = 5;
/// First pause before trying again; doubles, unless the server names its own.
const PAUSE: Duration = Duration::from_millis(200);
/// However long a server asks for: beyond this the user should hear of it.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Every object below the bucket's prefix, in no order.
pub(super) fn list_bucket(client: &Client, tally: &Tally<'_>) -> Result<Listing, OriginError> {
    let door = client.door();
    client.block_on(async {
        let mut listing = Listing::default();
        let is_empty = list_spans(door, tally, &mut listing).await?;
        if is_empty { Err(nothing(door).await) } else { Ok(listing) }
    })
}

/// Nothing is at the prefix: what is there next to it, on the closest level above that has anything.
async fn nothing(door: &Door) -> OriginError {
    let mut missing = door.prefix().trim_end_matches('/');
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
        // Without permission to list the level above there is nothing to add.
        let Ok(page) = door.page_of(&prefix, options).await else {
            break "check the spelling of the prefix".to_owned();
        };
        let folders: Vec<_> = page
            .folders
            .iter()
            .filter_map(|folder| folder.strip_prefix(&prefix))
            .map(|folder| folder.trim_end_matches('/').to_owned())
            .collect();
        if !folders.is_empty() || !page.objects.is_empty() {
            let Place::Bucket { name: bucket, .. } = door.uri().place() else {
                unreachable!("only buckets are listed")
            };
            let place = format!("s3://{bucket}/{above}");
            break format!(
                "{} has {}",
                place.trim_end_matches('/'),
                nearby::named(name, folders, "prefixes")
            );
        }
        missing = above;
    };
    OriginError::Nothing { uri: door.uri().to_string(), found }
}

/// The keys after `after` up to and with `until`.
#[derive(Debug, Default)]
struct Span {
    after: Option<String>,
    until: Option<String>,
    /// Where the server goes on; it knows better than `after` when a page is empty.
    token: Option<String>,
}

/// Lists all spans; whether no key at all was found.
async fn list_spans(door: &Door, tally: &Tally<'_>, listing: &mut Listing) -> Result<bool, OriginError> {
    // Directory buckets (S3 Express) list in no order and take no start: one span.
    let ordered = !door.uri().to_string().contains("--x-s3");
    let mut ready = vec![Span::default()];
    let mut is_empty = true;
    if ordered {
        (ready, is_empty) = first_spans(door, tally, listing).await?;
    }
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < WIDTH {
            let Some(span) = ready.pop() else { break };
            running.push(next_page(door, span));
        }
        let Some(answer) = running.next().await else { return Ok(is_empty) };
        let (mut span, page) = answer?;
        tally.check()?;
        let mut last = None;
        let first = listing.objects.len();
        let mut passed_end = false;
        is_empty &= page.objects.is_empty();
        for object in &page.objects {
            let key = object.key.as_str();
            if span.until.as_deref().is_some_and(|until| key > until) {
                passed_end = true;
                continue;
            }
            last = last.max(Some(key.to_owned()));
            add(door, tally, object, listing);
        }
        tally.step(&listing.objects[first..]);
        if passed_end && ordered {
            continue;
        }
        let Some(token) = page.token.clone() else { continue };
        if page.objects.is_empty() && span.token.as_ref() == Some(&token) {
            let cause = "the listing repeats an empty page for ever".to_owned();
            return Err(OriginError::Failed { uri: door.uri().to_string(), cause });
        }
        span.token = Some(token);
        if let Some(last) = last {
            if ordered
                && ready.is_empty()
                && running.len() + 1 < WIDTH
                && let Some(cut) = between(&last, span.until.as_deref(), door.prefix())
            {
                ready.push(Span { after: Some(cut.clone()), until: span.until.replace(cut), token: None });
            }
            span.after = Some(last);
        }
        ready.push(span);
    }
}

/// Cuts at the top folders. A bucket without folders brings its first page of objects at the same price.
async fn first_spans(
    door: &Door,
    tally: &Tally<'_>,
    listing: &mut Listing,
) -> Result<(Vec<Span>, bool), OriginError> {
    let top = patiently(door, || {
        door.page(PaginatedListOptions { delimiter: Some("/".into()), ..PaginatedListOptions::default() })
    })
    .await?;
    let mut cuts = top.folders;
    if cuts.is_empty() {
        for object in &top.objects {
            add(door, tally, object, listing);
        }
        tally.step(&listing.objects);
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
    for cut in cuts.into_iter().step_by(every) {
        spans.push(Span { after: after.replace(cut.clone()), until: Some(cut), token: None });
    }
    spans.push(Span { after, ..Span::default() });
    Ok((spans, false))
}

async fn next_page(door: &Door, span: Span) -> Result<(Span, ListPage), OriginError> {
    let page = patiently(door, || {
        door.page(PaginatedListOptions {
            // A token says where to go on; a start given with it would be ignored.
            offset: span.after.clone().filter(|_| span.token.is_none()),
            page_token: span.token.clone(),
            ..PaginatedListOptions::default()
        })
    })
    .await?;
    Ok((span, page))
}

/// Takes an object of a page, unless it is excluded. Stand-ins for folders are told as a directory's folders are: those
/// of the first level.
fn add(door: &Door, tally: &Tally<'_>, object: &PageObject, listing: &mut Listing) {
    let Some(key) = object.key.strip_prefix(door.prefix()).filter(|key| !key.is_empty()) else { return };
    let key = key.as_bytes();
    let is_stand_in = key.ends_with(b"/");
    if (is_stand_in && key[..key.len() - 1].contains(&b'/')) || (tally.is_excluded)(key) {
        return;
    }
    let key = key.to_vec();
    if is_stand_in {
        listing.objects.push(OriginObject { key, size: 0, tag: Vec::new() });
        return;
    }
    match door.path(&key) {
        Ok(_) => listing.objects.push(OriginObject { key, size: object.size, tag: object.tag.clone() }),
        Err(cause) => {
            let error = door.bad_key(&key, cause);
            listing.unreadable.push(Unreadable { key, error });
        }
    }
}

/// Size and tag of each of `keys`, in no order.
///
/// Many keys of a bucket are looked up in a listing of their common prefix, as long as that takes fewer requests than asking
/// for each: one page has a thousand keys, and other objects may be at the prefix too.
pub(super) fn ask_each(client: &Client, keys: &[Vec<u8>], tally: &Tally<'_>) -> Result<Listing, OriginError> {
    let door = client.door();
    client.block_on(async {
        let mut listing = Listing::default();
        let is_bucket = matches!(door.uri().place(), Place::Bucket { .. });
        if is_bucket && keys.len() >= LIST_FROM {
            list_wanted(door, keys, tally, &mut listing).await?;
        }
        let found: HashSet<&[u8]> = listing.objects.iter().map(|object| object.key.as_slice()).collect();
        let missing: Vec<&Vec<u8>> = keys.iter().filter(|key| !found.contains(key.as_slice())).collect();
        drop(found);
        let mut asked = stream::iter(missing)
            .map(|key| async move { (key, ask(door, key).await) })
            .buffer_unordered(HEAD_WIDTH);
        while let Some((key, answer)) = asked.next().await {
            tally.check()?;
            let first = listing.objects.len();
            match answer {
                Ok(found) => listing.objects.push(found),
                Err(error @ (OriginError::Missing { .. } | OriginError::BadKey { .. })) => {
                    listing.unreadable.push(Unreadable { key: key.clone(), error });
                }
                Err(error) => return Err(error),
            }
            tally.step(&listing.objects[first..]);
        }
        Ok(listing)
    })
}

/// Lists the prefix for `keys` until that has taken as many requests as pay. Without permission to list it finds nothing.
async fn list_wanted(
    door: &Door,
    keys: &[Vec<u8>],
    tally: &Tally<'_>,
    listing: &mut Listing,
) -> Result<(), OriginError> {
    let wanted: HashSet<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let (pages, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    let count = |now| {
        (tally.progress)(now);
        let is_dear = pages.fetch_add(1, Ordering::Relaxed) >= keys.len() / KEYS_PER_PAGE_LEAST;
        if is_dear || tally.cancel.load(Ordering::Relaxed) {
            enough.store(true, Ordering::Relaxed);
        }
    };
    let is_excluded = |key: &[u8]| !wanted.contains(key);
    let sums = Sums::default();
    let bounded =
        Tally { sums, progress: &count, cancel: &enough, uri: tally.uri, is_excluded: &is_excluded };
    match list_spans(door, &bounded, listing).await {
        Ok(_) | Err(OriginError::Cancelled { .. } | OriginError::Denied { .. }) => tally.check()?,
        Err(error) => return Err(error),
    }
    tally.step(&listing.objects);
    listing.unreadable.clear();
    Ok(())
}

async fn ask(door: &Door, key: &[u8]) -> Result<OriginObject, OriginError> {
    let path = door.path(key).map_err(|cause| door.bad_key(key, cause))?;
    let mut attempt = 0;
    loop {
        match door.head(&path, &Arc::default()).await {
            Ok(meta) => {
                return Ok(OriginObject { key: key.to_vec(), size: meta.size, tag: object_tag(&meta) });
            }
            Err(failure) => wait_or_fail(&mut attempt, failure, door, || door.uri().join(key)).await?,
        }
    }
}

/// Asks up to five times, if asking again can help.
async fn patiently<T, F>(door: &Door, mut request: impl FnMut() -> F) -> Result<T, OriginError>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut attempt = 0;
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(failure) => wait_or_fail(&mut attempt, failure, door, || door.uri().to_string()).await?,
        }
    }
}

async fn wait_or_fail(
    attempt: &mut u32,
    failure: Failure,
    door: &Door,
    uri: impl FnOnce() -> String,
) -> Result<(), OriginError> {
    let pause = match failure.outcome {
        ReadOutcome::Throttled { retry_after: Some(pause) } => Duration::from(pause).min(PAUSE_MAX),
        ReadOutcome::Throttled { retry_after: None } | ReadOutcome::Retryable => PAUSE * 2_u32.pow(*attempt),
        _ => return Err(door.error(failure, uri())),
    };
    *attempt += 1;
    if *attempt >= ATTEMPTS {
        return Err(door.error(failure, uri()));
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

#[cfg(test)]
mod process_tests;
