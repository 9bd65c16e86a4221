// SPDX-License-Identifier: Apache-2.0
//! Enums whose variants have names in files and messages.

/// Define an enum whose variants have names: `ALL`, `name` and `from_name`.
///
/// # Examples
/// ```
/// foresee_units::named_enum! {
///     /// A direction.
///     Direction {
///         /// To the left.
///         Left => "left",
///         /// To the right.
///         Right => "right",
///     }
/// }
/// assert_eq!(Direction::Left.name(), "left");
/// assert_eq!(Direction::from_name("right"), Some(Direction::Right));
/// ```
#[macro_export]
macro_rules! named_enum {
    ($(#[$doc:meta])* $enum:ident { $($(#[$variant_doc:meta])* $variant:ident => $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $enum { $($(#[$variant_doc])* $variant,)* }

        impl $enum {
            /// Every variant, in declaration order: `ALL[variant as usize] == variant`.
            pub const ALL: [Self; [$($name,)*].len()] = [$(Self::$variant,)*];

            /// The name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The variant with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|variant| variant.name() == name)
            }
        }
    };
}
