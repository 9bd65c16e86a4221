// SPDX-License-Identifier: Apache-2.0
//! Differences between two indexes of one data set, object by object.
//!
//! An update lists again, builds a new index with the old one's layout ([`Index::rebuild`]) and compares both.
//! They have the same order, or are sorted for this, so one pass over both finds all differences.

use std::cmp::Ordering;
use std::iter;

use crate::builder::IndexBuilder;
use crate::error::IndexError;
use crate::fingerprint::Object;
use crate::index::Index;
use crate::layout::LayoutOptions;

/// One changed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Only in the new index.
    Added(&'a [u8]),
    /// Only in the old index.
    Removed(&'a [u8]),
    /// In both, with another size, tag, label or number of rows.
    Changed(&'a [u8]),
}

/// Counts of changed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Objects that are new.
    pub added: u64,
    /// Objects that are gone.
    pub removed: u64,
    /// Objects with another size, tag, label or number of rows.
    pub changed: u64,
    /// Unchanged objects.
    pub same: u64,
}

impl Index {
    /// Create a builder with the same data set and layout, for the new listing; `created` as in
    /// [`IndexBuilder::new`].
    pub fn rebuild(&self, created: u64) -> Result<IndexBuilder, IndexError> {
        IndexBuilder::new(self.base_uri(), self.layout().options(), created)
    }

    /// Count the differences from this index to `new`.
    ///
    /// # Errors
    /// [`IndexError::LayoutsDiffer`], or an error of [`Index::verify`] about an entry.
    pub fn diff(&self, new: &Self) -> Result<Diff, IndexError> {
        let mut diff = Diff::default();
        for change in self.changes(new)? {
            match change? {
                Change::Added(_) => diff.added += 1,
                Change::Removed(_) => diff.removed += 1,
                Change::Changed(_) => diff.changed += 1,
            }
        }
        diff.same = self.objects().saturating_sub(diff.removed + diff.changed);
        Ok(diff)
    }

    /// Numbers of all objects in the order of their keys; equal keys in their own order.
    fn objects_by_key(&self) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.objects()).collect();
        let key = |number: u64| self.object_at(number).map_or(&[][..], |object| object.key);
        order.sort_by(|&one, &other| key(one).cmp(key(other)));
        order
    }

    /// The differences from this index to `new`, in the order of their samples.
    ///
    /// # Errors
    /// As [`Self::diff`].
    pub fn changes<'a>(
        &'a self,
        new: &'a Self,
    ) -> Result<impl Iterator<Item = Result<Change<'a>, IndexError>>, IndexError> {
        let options = self.layout().options();
        if options != new.layout().options() {
            return Err(IndexError::LayoutsDiffer {
                old: options.describe(),
                new: new.layout().options().describe(),
            });
        }
        let order = |index: &Self| options.keeps_order().then(|| index.objects_by_key());
        let mut walk = Walk {
            old: self,
            new,
            old_order: order(self),
            new_order: order(new),
            old_at: 0,
            new_at: 0,
            options,
        };
        Ok(iter::from_fn(move || walk.next().transpose()))
    }
}

/// The two indexes and the read positions.
struct Walk<'a> {
    old: &'a Index,
    new: &'a Index,
    /// Objects by key, if an index is not in this order.
    old_order: Option<Vec<u64>>,
    new_order: Option<Vec<u64>>,
    old_at: u64,
    new_at: u64,
    options: LayoutOptions,
}

impl<'a> Walk<'a> {
    fn next(&mut self) -> Result<Option<Change<'a>>, IndexError> {
        loop {
            let old = object_below_end(self.old, self.old_order.as_deref(), self.old_at)?;
            let new = object_below_end(self.new, self.new_order.as_deref(), self.new_at)?;
            let order = match (&old, &new) {
                (None, None) => return Ok(None),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => self.options.compare(old.key, new.key),
            };
            self.old_at += u64::from(order.is_le());
            self.new_at += u64::from(order.is_ge());
            match (order, old, new) {
                (Ordering::Equal, old, new) if old == new => {}
                (Ordering::Less, Some(old), _) => return Ok(Some(Change::Removed(old.key))),
                (_, _, Some(new)) if order.is_gt() => return Ok(Some(Change::Added(new.key))),
                (_, _, Some(new)) => return Ok(Some(Change::Changed(new.key))),
                (_, _, None) => return Ok(None),
            }
        }
    }
}

fn object_below_end<'a>(
    index: &'a Index,
    order: Option<&[u64]>,
    at: u64,
) -> Result<Option<Object<'a>>, IndexError> {
    if at >= index.objects() {
        return Ok(None);
    }
    let at = order.map_or(at, |order| order[usize::try_from(at).expect("as many as in memory")]);
    index.object_at(at).map(Some)
}
