// SPDX-License-Identifier: Apache-2.0
//! Writing an index: front to back, in one pass over the file and a few over the sorted listing.
//!
//! Apart from [`crate::builder`], which knows what a data set is and nothing of the file. Equal data sets
//! give equal files, byte for byte, apart from `created` and the base URI.

use std::io::{self, Write};

use crate::builder::IndexPlan;
use crate::column::{Numbers, Strings};
use crate::contents::{Classes, Contents, Objects, Rows};
use crate::error::IndexError;
use crate::fingerprint::{self, Fingerprint};

/// What is gathered before a call into the caller's writer, which may be a bare file.
const BUFFER_BYTES: usize = 256 * 1024;

impl IndexPlan {
    /// Writes the index. Flushes `out`; making it durable is the caller's.
    pub fn write(&self, out: impl Write) -> Result<(), IndexError> {
        let contents = self.contents();
        let mut out = Counted { inner: io::BufWriter::with_capacity(BUFFER_BYTES, out), written: 0 };
        out.write_all(&Contents::head())?;
        contents.objects.key.write(self.objects().map(|object| object.key), &mut out)?;
        contents.objects.size.write(self.objects().map(|object| object.size), &mut out)?;
        contents.objects.tag.write(self.objects().map(|object| object.tag), &mut out)?;
        if let Some(classes) = &contents.classes {
            classes.label.write(self.labels(), &mut out)?;
            classes.name.write(self.class_names(), &mut out)?;
        }
        if let Some(rows) = &contents.rows {
            rows.start.write(self.objects().map(|object| object.start), &mut out)?;
            rows.end.write(self.row_ends(), &mut out)?;
        }
        let at = out.written;
        out.write_all(&contents.tail(at))?;
        out.flush()?;
        Ok(())
    }

    fn contents(&self) -> Contents {
        let mut fingerprint = Fingerprint::new(&self.layout, self.class_names());
        self.objects().for_each(|object| fingerprint.add(&object));
        let summary = self.summary();
        Contents {
            base_uri: self.base.clone(),
            created: self.created,
            layout: self.layout.clone(),
            fingerprint: fingerprint::to_hex(fingerprint.finish()),
            samples: summary.samples,
            total_bytes: summary.total_bytes,
            max_bytes: summary.max_bytes,
            objects: Objects {
                count: summary.objects,
                key: Strings::fitting(self.objects().map(|object| object.key)),
                size: Numbers::fitting(self.objects().map(|object| object.size)),
                tag: Strings::fitting(self.objects().map(|object| object.tag)),
            },
            classes: (!self.classes.is_empty()).then(|| Classes {
                count: summary.classes,
                label: Numbers::fitting(self.labels()),
                name: Strings::fitting(self.class_names()),
            }),
            rows: self.layout.row_bytes().map(|_| Rows {
                start: Numbers::fitting(self.objects().map(|object| object.start)),
                end: Numbers::fitting(self.row_ends()),
            }),
        }
    }

    fn class_names(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.classes.iter().map(Vec::as_slice)
    }

    fn labels(&self) -> impl Iterator<Item = u64> {
        self.objects().filter_map(|object| object.label)
    }

    fn row_ends(&self) -> impl Iterator<Item = u64> {
        self.objects().scan(0, |end, object| {
            *end += object.rows;
            Some(*end)
        })
    }
}

/// Knows how many bytes went through it.
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
