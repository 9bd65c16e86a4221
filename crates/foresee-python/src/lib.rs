// SPDX-License-Identifier: Apache-2.0
//! PyO3: convert, release the interpreter, convert back; no logic.
