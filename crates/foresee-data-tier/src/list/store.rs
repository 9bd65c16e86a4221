// SPDX-License-Identifier: Apache-2.0
//! Lists a bucket with many requests at once, and asks a web server for each object of a given list.
//!
//! A bucket answers 1000 keys at a time and only in order, so the key space is cut into spans that are
//! listed side by side: first at its top folders, then, whenever a request could be under way and none is,
//! half way between where a span has come and where it ends. Refuses to trust an answer's order or size.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use object_store::ObjectMeta;
use object_store::list::PaginatedListOptions;

use super::split::between;
use super::{Listed, Tally};
use crate::op::Outcome;
use crate::origin::{Client, Door, Failure, OriginError, object_tag};

/// Requests under way at once: S3 takes thousands per second and prefix, one answer takes about 0.1 s.
const WIDTH: usize = 32;
/// `HEAD` requests under way at once; they are small.
const HEAD_WIDTH: usize = 64;
/// A listing has no deadline and nobody above it to try again.
const ATTEMPTS: u32 = 5;
/// First pause before trying again; doubles, unless the server names its own.
const PAUSE: Duration = Duration::from_millis(200);
/// However long a server asks for: beyond this the user should hear of it.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Every object below the bucket's prefix, in no order.
pub(super) fn list_bucket(client: &Client, tally: &Tally<'_>) -> Result<Vec<Listed>, OriginError> {
    let door = client.door();
    client.block_on(async {
        let mut listed = list_spans(door, tally).await?;
        drop_stand_ins(door, &mut listed).await?;
        Ok(listed)
    })
}

/// The keys after `after` up to and with `until`.
#[derive(Debug, Default)]
struct Span {
    after: Option<String>,
    until: Option<String>,
    /// Where the server goes on; it knows better than `after` when a page is empty.
    token: Option<String>,
}

async fn list_spans(door: &Door, tally: &Tally<'_>) -> Result<Vec<Listed>, OriginError> {
    // Directory buckets (S3 Express) list in no order and take no start: one span.
    let ordered = !door.uri().to_string().contains("--x-s3");
    let mut listed = Vec::new();
    let mut ready = vec![Span::default()];
    if ordered {
        ready = first_spans(door, tally, &mut listed).await?;
    }
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < WIDTH {
            let Some(span) = ready.pop() else { break };
            running.push(next_page(door, span));
        }
        let Some(answer) = running.next().await else { return Ok(listed) };
        let (mut span, page) = answer?;
        tally.check()?;
        let mut last = None;
        let first = listed.len();
        let mut passed_end = false;
        for object in &page.objects {
            let key = object.location.as_ref();
            if span.until.as_deref().is_some_and(|until| key > until) {
                passed_end = true;
                continue;
            }
            last = last.max(Some(key.to_owned()));
            listed.extend(below_prefix(door, object));
        }
        tally.step(&listed[first..]);
        if passed_end && ordered {
            continue;
        }
        let Some(token) = page.token else { continue };
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
    listed: &mut Vec<Listed>,
) -> Result<Vec<Span>, OriginError> {
    let top = patiently(door, || {
        door.page(PaginatedListOptions { delimiter: Some("/".into()), ..PaginatedListOptions::default() })
    })
    .await?;
    let folders = top.result.common_prefixes;
    if folders.is_empty() {
        listed.extend(top.result.objects.iter().filter_map(|object| below_prefix(door, object)));
        tally.step(listed);
        let last = top.result.objects.iter().map(|object| object.location.as_ref()).max();
        return Ok(match (top.page_token, last) {
            (None, _) => Vec::new(),
            (Some(_), last) => vec![Span { after: last.map(str::to_owned), ..Span::default() }],
        });
    }
    let mut cuts: Vec<String> = folders.iter().map(ToString::to_string).collect();
    cuts.sort_unstable();
    let every = cuts.len().div_ceil(2 * WIDTH);
    let mut spans = Vec::new();
    let mut after = None;
    for cut in cuts.into_iter().step_by(every) {
        spans.push(Span { after: after.replace(cut.clone()), until: Some(cut), token: None });
    }
    spans.push(Span { after, ..Span::default() });
    Ok(spans)
}

struct Page {
    objects: Vec<ObjectMeta>,
    token: Option<String>,
}

async fn next_page(door: &Door, span: Span) -> Result<(Span, Page), OriginError> {
    let page = patiently(door, || {
        door.page(PaginatedListOptions {
            // A token says where to go on; a start beside it would be ignored.
            offset: span.after.clone().filter(|_| span.token.is_none()),
            page_token: span.token.clone(),
            ..PaginatedListOptions::default()
        })
    })
    .await?;
    let token = page.page_token.filter(|token| !token.is_empty());
    Ok((span, Page { objects: page.result.objects, token }))
}

fn below_prefix(door: &Door, object: &ObjectMeta) -> Option<Listed> {
    let key = object.location.as_ref().strip_prefix(door.prefix()).filter(|key| !key.is_empty())?;
    Some(Listed { key: key.as_bytes().to_vec(), size: object.size, tag: object_tag(object) })
}

/// Leaves out zero-byte stand-ins for folders. The store client shows `folder/` as `folder`, so each empty
/// object is asked for by the name shown: a stand-in does not exist under it.
async fn drop_stand_ins(door: &Door, listed: &mut Vec<Listed>) -> Result<(), OriginError> {
    let empty: Vec<Vec<u8>> =
        listed.iter().filter(|object| object.size == 0).map(|object| object.key.clone()).collect();
    let mut asked = stream::iter(empty)
        .map(|key| async {
            let answer = ask(door, &key).await;
            (key, answer)
        })
        .buffer_unordered(HEAD_WIDTH);
    let mut stand_ins = std::collections::BTreeSet::new();
    while let Some((key, answer)) = asked.next().await {
        match answer {
            Ok(_) => {}
            Err(OriginError::Missing { .. }) => {
                stand_ins.insert(key);
            }
            Err(error) => return Err(error),
        }
    }
    listed.retain(|object| object.size > 0 || !stand_ins.contains(&object.key));
    Ok(())
}

/// Size and tag of each of `keys`, in no order.
pub(super) fn ask_each(
    client: &Client,
    keys: &[Vec<u8>],
    tally: &Tally<'_>,
) -> Result<Vec<Listed>, OriginError> {
    let door = client.door();
    client.block_on(async {
        let mut listed = Vec::with_capacity(keys.len());
        let mut asked = stream::iter(keys).map(|key| ask(door, key)).buffer_unordered(HEAD_WIDTH);
        while let Some(answer) = asked.next().await {
            tally.check()?;
            listed.push(answer?);
            tally.step(&listed[listed.len() - 1..]);
        }
        Ok(listed)
    })
}

async fn ask(door: &Door, key: &[u8]) -> Result<Listed, OriginError> {
    let path = door.path(key).map_err(|cause| door.bad_key(key, cause))?;
    let mut attempt = 0;
    loop {
        match door.head(&path, &Arc::default()).await {
            Ok(meta) => return Ok(Listed { key: key.to_vec(), size: meta.size, tag: object_tag(&meta) }),
            Err(failure) => wait_or_fail(&mut attempt, failure, || door.uri().join(key)).await?,
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
            Err(failure) => wait_or_fail(&mut attempt, failure, || door.uri().to_string()).await?,
        }
    }
}

async fn wait_or_fail(
    attempt: &mut u32,
    failure: Failure,
    uri: impl FnOnce() -> String,
) -> Result<(), OriginError> {
    let pause = match failure.outcome {
        Outcome::Throttled { retry_after: Some(pause) } => Duration::from(pause).min(PAUSE_MAX),
        Outcome::Throttled { retry_after: None } | Outcome::Retryable => PAUSE * 2_u32.pow(*attempt),
        _ => return Err(failure.into_error(uri())),
    };
    *attempt += 1;
    if *attempt >= ATTEMPTS {
        return Err(failure.into_error(uri()));
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

#[cfg(test)]
mod process_tests;
