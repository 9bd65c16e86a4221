// SPDX-License-Identifier: Apache-2.0
//! Differences between two indexes of one data set, object by object.
//!
//! An update lists again, builds a new index with the old one's layout ([`Index::rebuild`]) and compares both.
//! They have the same order, or are sorted for this, so one pass over both finds all differences.

use std::cmp::Ordering;

use crate::builder::IndexBuilder;
use crate::error::IndexError;
use crate::fingerprint::Object;
use crate::index::Index;

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
        let options = self.layout().options();
        if options != new.layout().options() {
            return Err(IndexError::LayoutsDiffer {
                old: options.describe(),
                new: new.layout().options().describe(),
            });
        }
        let order = |index: &Self| options.keeps_order().then(|| index.objects_by_key());
        let (old_order, new_order) = (order(self), order(new));
        let (mut old_at, mut new_at, mut diff) = (0, 0, Diff::default());
        loop {
            let old_object = self.object_in_order(old_order.as_deref(), old_at)?;
            let new_object = new.object_in_order(new_order.as_deref(), new_at)?;
            let order = match (&old_object, &new_object) {
                (None, None) => return Ok(diff),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(old), Some(new)) => options.compare(old.key, new.key),
            };
            old_at += u64::from(order.is_le());
            new_at += u64::from(order.is_ge());
            *match order {
                Ordering::Less => &mut diff.removed,
                Ordering::Greater => &mut diff.added,
                Ordering::Equal if old_object == new_object => &mut diff.same,
                Ordering::Equal => &mut diff.changed,
            } += 1;
        }
    }

    /// Numbers of all objects in the order of their keys; equal keys in their own order.
    fn objects_by_key(&self) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.objects()).collect();
        let key = |number: u64| self.object_at(number).map_or(&[][..], |object| object.key);
        order.sort_by(|&one, &other| key(one).cmp(key(other)));
        order
    }

    /// Object `at` of `order`, or of the file; `None` past the last one.
    fn object_in_order(&self, order: Option<&[u64]>, at: u64) -> Result<Option<Object<'_>>, IndexError> {
        if at >= self.objects() {
            return Ok(None);
        }
        let number = order.map_or(at, |order| order[usize::try_from(at).expect("as many as in memory")]);
        self.object_at(number).map(Some)
    }
}
