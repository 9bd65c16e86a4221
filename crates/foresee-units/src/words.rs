// SPDX-License-Identifier: Apache-2.0
//! Closed lists of words: an enum with the spelling of each variant.

/// Defines an enum whose variants have spellings: `ALL`, `word` and `named`.
///
/// # Examples
/// ```
/// foresee_units::words! {
///     /// A direction.
///     Direction {
///         /// To the left.
///         Left => "left",
///         /// To the right.
///         Right => "right",
///     }
/// }
/// assert_eq!(Direction::Left.word(), "left");
/// assert_eq!(Direction::named("right"), Some(Direction::Right));
/// ```
#[macro_export]
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $variant:ident => $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$word_doc])* $variant,)* }

        impl $name {
            /// Every variant, in declaration order: `ALL[variant as usize] == variant`.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The spelling.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// The variant with this spelling.
            pub fn named(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|variant| variant.word() == word)
            }
        }
    };
}
