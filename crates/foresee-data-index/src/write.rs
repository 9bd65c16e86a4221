// SPDX-License-Identifier: Apache-2.0
//! Writing of an index: front to back, in one pass over the file and a few over the sorted listing.
//!
//! [`crate::builder`] is separate, and does not depend on the file format. Equal data sets give equal files, byte
//! for byte, except for `created` and the base URI.
//!
//! Keys and tags are only read to hash and to write them, because their memory accesses are scattered.

use std::io::{self, Write};

use crate::builder::IndexPlan;
use crate::column::{Numbers, Strings, running_sum};
use crate::contents::{Classes, Contents, Objects, Picks, Rows};
use crate::error::IndexError;
use crate::fingerprint::{self, Fingerprint};

/// Bytes that are buffered before a call of the caller's writer, which may be an unbuffered file.
const BUFFER_BYTES: usize = 256 * 1024;

impl IndexPlan {
    /// Write the index. Flushes `out`; the caller makes it durable.
    pub fn write(&self, out: impl Write) -> Result<(), IndexError> {
        let contents = self.contents();
        let mut out = Counted { inner: io::BufWriter::with_capacity(BUFFER_BYTES, out), written: 0 };
        out.write_all(&contents.head())?;
        let Objects { key, size, tag, .. } = &contents.objects;
        key.write(self.key_lengths(), self.objects.iter().map(|&object| self.store.key(object)), &mut out)?;
        size.write(self.sizes(), &mut out)?;
        tag.write(self.tag_lengths(), self.objects.iter().map(|&object| self.store.tag(object)), &mut out)?;
        if let Some(Classes { label, name, .. }) = &contents.classes {
            label.write(self.labels(), &mut out)?;
            name.write(self.class_lengths(), self.class_names(), &mut out)?;
        }
        if let Some(Rows { start, end }) = &contents.rows {
            start.write(self.row_layouts().map(|one| one.start), &mut out)?;
            end.write(running_sum(self.row_layouts().map(|one| one.rows)), &mut out)?;
        }
        if let Some(Picks { object, .. }) = &contents.picks {
            object.write(self.picks().iter().copied(), &mut out)?;
        }
        let at = out.written;
        out.write_all(&contents.tail(at))?;
        out.flush()?;
        Ok(())
    }

    fn contents(&self) -> Contents {
        let mut fingerprint = Fingerprint::new(self.layout(), self.class_names());
        for object in self.objects() {
            fingerprint.add(&object);
        }
        fingerprint.add_numbers(self.picks().iter().copied());
        let summary = self.summary();
        Contents {
            base_uri: self.base.clone(),
            created: self.created,
            layout: self.layout().clone(),
            fingerprint: fingerprint::to_hex(fingerprint.finish()),
            samples: summary.samples,
            total_bytes: summary.total_bytes,
            max_bytes: summary.max_bytes,
            objects: Objects {
                count: summary.objects,
                key: Strings::fitting(self.key_lengths()),
                size: Numbers::fitting(self.sizes()),
                tag: Strings::fitting(self.tag_lengths()),
            },
            classes: (!self.classes.is_empty()).then(|| Classes {
                count: summary.classes,
                label: Numbers::fitting(self.labels()),
                name: Strings::fitting(self.class_lengths()),
            }),
            rows: self.layout().row_bytes().map(|_| Rows {
                start: Numbers::fitting(self.row_layouts().map(|one| one.start)),
                end: Numbers::fitting(running_sum(self.row_layouts().map(|one| one.rows))),
            }),
            picks: (!self.picks().is_empty()).then(|| Picks {
                count: self.picks().len() as u64,
                object: Numbers::fitting(self.picks().iter().copied()),
            }),
        }
    }

    fn key_lengths(&self) -> impl Iterator<Item = u64> + Clone {
        self.objects.iter().map(|object| object.key_bytes())
    }

    fn tag_lengths(&self) -> impl Iterator<Item = u64> + Clone {
        self.objects.iter().map(|object| object.tag_bytes())
    }

    fn sizes(&self) -> impl Iterator<Item = u64> {
        self.objects.iter().map(|object| object.size)
    }

    fn class_names(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.classes.iter().map(|class| class.name.as_slice())
    }

    fn class_lengths(&self) -> impl Iterator<Item = u64> + Clone {
        self.class_names().map(|name| name.len() as u64)
    }
}

/// Counts the bytes written.
struct Counted<W> {
    inner: W,
    written: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
