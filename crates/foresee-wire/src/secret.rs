// SPDX-License-Identifier: Apache-2.0
//! The secret that the ends of a job share.
//!
//! It is separate from the handshake because it defines the allowed sources of a secret: a private file, the
//! environment, or a random number. Process arguments are not allowed, because every user of a node can list
//! them. `Debug` shows only its length, and [`Secret::reveal`] is the only access to its bytes.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::WireError;

/// The environment variable of a secret.
pub const ENV: &str = "FORESEE_TOKEN";
/// The shortest secret. An eavesdropper of a handshake can test guesses offline, so it must not be guessable.
pub const SECRET_BYTES_MIN: usize = 16;
/// The longest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 1024;

/// A job's secret. It excludes other users and other jobs; encryption needs TLS.
#[derive(Clone)]
pub struct Secret(Arc<SecretData>);

struct SecretData {
    text: Vec<u8>,
    key: hmac::Key,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.text.len())
    }
}

impl Secret {
    /// Draw 256 random bits as 64 hexadecimal digits: one rank draws it, and the job's store carries it to the
    /// others.
    pub fn draw() -> Result<Self, WireError> {
        let mut text = Vec::with_capacity(64);
        for byte in random()? {
            text.extend([byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
        }
        Self::new(text, "chance")
    }

    /// Create a secret from a text that was transferred securely. Surrounding white space is removed.
    pub fn from_text(text: &str) -> Result<Self, WireError> {
        Self::new(text.trim().as_bytes().to_vec(), "the job")
    }

    /// Read a secret from a file that only its owner can access. Surrounding white space is removed.
    ///
    /// # Errors
    /// It cannot be read, is not a regular file, other users may access it, or the secret is too short.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, WireError> {
        let path = path.as_ref();
        let fault = |why| WireError::SecretFile { path: path.to_owned(), why };
        let file = File::open(path).map_err(fault)?;
        // Checked on the open file and not by name, which another process could replace in between.
        let found = file.metadata().map_err(fault)?;
        if !found.is_file() {
            return Err(fault(std::io::Error::other("it is not a regular file")));
        }
        let mode = found.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(WireError::SecretExposed { path: path.to_owned(), mode });
        }
        let mut text = Vec::new();
        file.take(SECRET_BYTES_MAX as u64 + 64).read_to_end(&mut text).map_err(fault)?;
        Self::new(text.trim_ascii().to_vec(), &path.display().to_string())
    }

    /// Read a secret from the variable [`ENV`].
    pub fn from_env() -> Result<Self, WireError> {
        use std::os::unix::ffi::OsStrExt as _;
        let text = std::env::var_os(ENV).ok_or(WireError::NoSecret)?;
        Self::new(text.as_bytes().trim_ascii().to_vec(), ENV)
    }

    /// The secret's bytes, for other processes of the job. Keep them out of logs and arguments.
    pub fn reveal(&self) -> &[u8] {
        &self.0.text
    }

    /// The key of HMAC-SHA256.
    pub(crate) fn key(&self) -> &hmac::Key {
        &self.0.key
    }

    fn new(text: Vec<u8>, origin: &str) -> Result<Self, WireError> {
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&text.len()) {
            return Err(WireError::SecretLength { origin: origin.to_owned(), bytes: text.len() });
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, &text);
        Ok(Self(Arc::new(SecretData { text, key })))
    }
}

/// 32 unpredictable bytes.
pub(crate) fn random() -> Result<[u8; 32], WireError> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| WireError::NoRandom)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};

    use super::*;

    #[test]
    fn a_drawn_secret_is_new_each_time_and_can_be_restored_from_its_text() {
        let (one, other) = (Secret::draw().unwrap(), Secret::draw().unwrap());
        assert_ne!(one.reveal(), other.reveal());
        assert_eq!(one.reveal().len(), 64);
        let text = std::str::from_utf8(one.reveal()).unwrap();
        assert_eq!(Secret::from_text(&format!(" {text}\n")).unwrap().reveal(), one.reveal());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write(&path, "0123456789abcdef\n").unwrap();
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let secret = Secret::from_file(&path);
            assert_eq!(secret.is_ok(), fine, "{mode:o}");
            match secret {
                Ok(secret) => assert_eq!(secret.reveal(), b"0123456789abcdef"),
                Err(error) => assert!(error.to_string().contains(&format!("mode {mode:04o}")), "{error}"),
            }
        }
    }

    #[test]
    fn a_folder_a_missing_file_and_a_short_or_endless_secret_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        assert!(Secret::from_file(folder.path()).unwrap_err().to_string().contains("not a regular file"));
        let missing = folder.path().join("missing");
        assert!(Secret::from_file(&missing).unwrap_err().to_string().contains("missing"));
        let error = Secret::from_text("too short").unwrap_err().to_string();
        assert!(error.contains("has 9 bytes, and needs 16 to 1024"), "{error}");
        let long = folder.path().join("long");
        write(&long, "a".repeat(100_000)).unwrap();
        set_permissions(&long, Permissions::from_mode(0o600)).unwrap();
        assert!(Secret::from_file(&long).is_err());
    }

    #[test]
    fn debug_output_does_not_contain_the_secret() {
        let secret = Secret::from_text("correct horse battery staple").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(28 bytes)");
    }
}
