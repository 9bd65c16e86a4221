// SPDX-License-Identifier: Apache-2.0
//! Errors of listings, array files and indexes.
//!
//! Every variant that concerns an object contains its redacted URI. Only the caller knows the file name of an
//! index, and adds it.

use crate::layout::npy::NpyError;

/// Why there is no index, or why an index is unusable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The bytes begin with another magic.
    #[error(
        "not a Foresee index: its first bytes are not an index's; write one with `foresee index URI -o FILE`"
    )]
    NotAnIndex,
    /// Written by a later Foresee.
    #[error(
        "index of format version {found}, and this Foresee reads up to {supported}; \
         update Foresee or write the index again"
    )]
    NewerVersion {
        /// The version of the file.
        found: u32,
        /// The newest readable version.
        supported: u32,
    },
    /// The end of the file is missing.
    #[error("index cut short at {bytes} bytes, its end is missing; copy it again or write it again")]
    Truncated {
        /// The size of the file.
        bytes: u64,
    },
    /// The file contradicts itself.
    #[error("damaged index: {what}; copy it again or write it again")]
    Damaged {
        /// The contradiction.
        what: &'static str,
    },
    /// One entry contradicts the file; others may be valid.
    #[error("damaged index: {what} at object {object}; copy it again or write it again")]
    DamagedEntry {
        /// The object's number.
        object: u64,
        /// The contradiction.
        what: &'static str,
    },

    /// The data set has no samples.
    #[error(
        "no sample in {uri}: {}; check the URI, layout= (--layout) and extensions= (--extensions)",
        describe_rejected(*.ignored, .layout)
    )]
    Empty {
        /// The data set.
        uri: String,
        /// Listed objects that the layout ignores.
        ignored: u64,
        /// The layout's name, with its extensions if it has any.
        layout: String,
    },
    /// A folder layout without folders.
    #[error(
        "no class folder in {uri}: a folder data set has its samples in URI/CLASS/...; \
         for samples without classes make an index with `foresee index {uri} --layout flat -o FILE`"
    )]
    NoClasses {
        /// The data set.
        uri: String,
    },
    /// Class folders without samples, which `ImageFolder` rejects too.
    #[error(
        "no sample in {count} class folders of {uri}, the first is {class}; supported extensions: {extensions}; \
         allow_empty=True (--allow-empty) keeps empty classes, exclude={class:?} (--exclude) leaves the folder out"
    )]
    EmptyClasses {
        /// The data set.
        uri: String,
        /// The first such class, by name.
        class: String,
        /// The number of such classes.
        count: u64,
        /// The number of all class folders.
        of: u64,
        /// The accepted extensions.
        extensions: String,
    },
    /// The listing names one object twice.
    #[error("{uri} is listed twice; remove one of the two")]
    Duplicate {
        /// The object.
        uri: String,
    },
    /// `..`, a leading `/` or a full URL: the object would be outside of the data set.
    #[error(
        "{uri} is outside of its data set: its key begins with / or has .. as a part; rename the object, or leave it out \
         with exclude= (--exclude)"
    )]
    KeyEscapes {
        /// The object, in a form that is safe to show.
        uri: String,
    },
    /// An object without a name.
    #[error("an object of {uri} has an empty key; name the folder above it as the data set")]
    KeyEmpty {
        /// The data set.
        uri: String,
    },
    /// A key that is longer than any store allows.
    #[error("key of {bytes} bytes, the limit is {max}: {uri}")]
    KeyTooLong {
        /// The object, shortened.
        uri: String,
        /// Its key's length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// An origin's tag that is longer than any store uses.
    #[error("tag of {bytes} bytes, the limit is {max}: {uri}")]
    TagTooLong {
        /// The object.
        uri: String,
        /// Its tag's length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// An HTTP key with a query, which may be a signature.
    #[error(
        "{uri} carries a query, and an index stores no presigned parts; \
         list plain paths and pass credentials as storage options"
    )]
    KeyPresigned {
        /// The object without its query.
        uri: String,
    },
    /// An invalid pattern of excluded files.
    #[error(
        "exclude={pattern:?} is not a valid pattern: {cause}; write a name or a path, with *, ? or [a-z] in it"
    )]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The reason.
        cause: &'static str,
    },
    /// Extensions are compared with lower-case names, so this one would match nothing.
    #[error("extension {extension:?} matches no file; write it in lower case and not empty")]
    Extension {
        /// The extension.
        extension: String,
    },

    /// An array file that cannot be cut into rows.
    #[error("{uri}: {reason}")]
    Npy {
        /// The object.
        uri: String,
        /// The fault.
        reason: NpyError,
    },
    /// An npz archive.
    #[error("{uri} is an npz archive; save its arrays as .npy files, one array each, with numpy.save")]
    Npz {
        /// The object.
        uri: String,
    },
    /// Array files whose rows differ.
    #[error(
        "rows of {uri} are {found}, those of {first_uri} are {expected}; one data set has one kind of row"
    )]
    RowsDiffer {
        /// The object that differs.
        uri: String,
        /// Its type and shape.
        found: String,
        /// The object that it is compared with.
        first_uri: String,
        /// The type and shape of that object.
        expected: String,
    },
    /// An array file that is shorter or longer than its header says.
    #[error("{uri} has {found} bytes, its header promises {expected}; save it again, one array in one file")]
    ArrayLength {
        /// The object.
        uri: String,
        /// Header and rows together.
        expected: u64,
        /// The object's size.
        found: u64,
    },
    /// A file of fixed-size rows that ends inside a row.
    #[error(
        "{uri} has {size} bytes: {rest} are left over after rows of {row_bytes}; check the row size or the file"
    )]
    Remainder {
        /// The object.
        uri: String,
        /// The object's size.
        size: u64,
        /// A row's size.
        row_bytes: u64,
        /// Bytes past the last whole row.
        rest: u64,
    },
    /// A row of a table that does not name an object.
    #[error("{column}, row {row}: {value:?}: {cause}")]
    Row {
        /// The column's name.
        column: String,
        /// Counted from 0, like samples.
        row: u64,
        /// The cell, without secrets.
        value: String,
        /// The fault, and the remedy.
        cause: String,
    },
    /// Samples without objects.
    #[error("a table has 0 objects per sample; give at least one column of paths or URIs")]
    NoParts,
    /// Picks that name an unknown object.
    #[error("pick {pick} names object {object}, but {objects} are listed; give each pick below that number")]
    Pick {
        /// Index of the pick.
        pick: u64,
        /// The object that it names.
        object: u64,
        /// The number of objects.
        objects: u64,
    },
    /// A selection names an unknown sample.
    #[error("indices[{place}] of the subset is {sample}, and its data set has {samples} samples")]
    NotSelectable {
        /// Index in the selection, from 0.
        place: u64,
        /// The sample that it names.
        sample: i64,
        /// The number of samples.
        samples: u64,
    },
    /// A selection without samples.
    #[error("the subset has none of the {samples} samples of its data set; there is nothing to load")]
    NoneSelected {
        /// The number of samples.
        samples: u64,
    },
    /// Windows without elements, or beyond 64 bits.
    #[error("windows of {length} elements, {stride} apart; both are 1 or more, and their bytes below 2^64")]
    NoWindow {
        /// Elements of a window.
        length: u64,
        /// Elements from one window's start to the next.
        stride: u64,
    },
    /// A file that ends inside an element.
    #[error(
        "{uri} has {size} bytes of data: {rest} are left over after elements of {item_bytes}; check dtype= or the file"
    )]
    PartOfElement {
        /// The object.
        uri: String,
        /// Bytes of its elements.
        size: u64,
        /// An element's size.
        item_bytes: u64,
        /// Bytes past the last whole element.
        rest: u64,
    },
    /// An array with several axes, or of another type than requested.
    #[error(
        "{uri} is an array of {found}; windows need one axis of {expected}: save array.reshape(-1), or pass its dtype="
    )]
    NotFlat {
        /// The object.
        uri: String,
        /// Type and shape of an element of its first axis.
        found: String,
        /// The type of the other files.
        expected: String,
    },
    /// No file is as long as a window.
    #[error(
        "no window in {files} files of {uri}: a window has {length} elements, the longest file {longest}; use a smaller window"
    )]
    NoWindows {
        /// The data set.
        uri: String,
        /// The number of files.
        files: u64,
        /// Elements of a window.
        length: u64,
        /// Elements of the longest file.
        longest: u64,
    },
    /// Rows of zero bytes.
    #[error("a row of 0 bytes holds no sample; give the row's size in bytes, 1 or more")]
    NoRowBytes,
    /// The builder was finished before it received this file's header.
    #[error("the header of {uri} was requested and not received; answer every poll_head before finish")]
    HeadMissing {
        /// The object.
        uri: String,
    },
    /// More samples or bytes than 64 bits count.
    #[error("{uri} brings the data set past 2^64 samples or bytes; check the listed sizes")]
    TooLarge {
        /// The object that exceeded the limit.
        uri: String,
    },

    /// Two indexes that cannot be compared.
    #[error("an index of layout {old} cannot be updated from one of layout {new}; write it anew")]
    LayoutsDiffer {
        /// The layout of this index.
        old: String,
        /// The layout of the other index.
        new: String,
    },
    /// The index could not be written.
    #[error("the index could not be written: {0}")]
    Write(#[from] std::io::Error),
}

/// The part of a message about listed objects without samples.
fn describe_rejected(ignored: u64, layout: &str) -> String {
    match ignored {
        0 => "nothing is listed there".to_owned(),
        1 => format!("1 object is listed and does not fit the layout {layout}"),
        _ => format!("{ignored} objects are listed and none fits the layout {layout}"),
    }
}
