// SPDX-License-Identifier: Apache-2.0
//! Enums whose values have names, as in files, arguments and messages.

/// Defines an enum with its names: `ALL` in the order of definition, `name` and `named`.
macro_rules! named_enum {
    ($(#[$meta:meta])* $type:ident { $($(#[$doc:meta])* $value:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$doc])* $value,)*
        }

        impl $type {
            /// All values; the default, if there is one, is the first.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// Its name: the value in snake case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }

            /// The value of that name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}

pub(crate) use named_enum;
