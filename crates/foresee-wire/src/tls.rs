// SPDX-License-Identifier: Apache-2.0
//! Optional encryption: TLS 1.3 with ring, and nothing older.
//!
//! [`TlsClient`] authenticates the server by authorities, by the secret alone, or by both. The secret alone works
//! with any certificate, including one created at start. The proofs of the handshake cover 32 bytes that only the
//! two ends of *this* TLS session can compute (RFC 5705, RFC 9266). A man in the middle has two sessions with
//! different bytes, so the proofs fail.
//!
//! Client certificates are not used, because the secret authenticates the rank; nor is resumption, because
//! connections live as long as runs.

mod certificate;
mod stream;

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

pub(crate) use stream::Tls;

use crate::error::WireError;

/// Encryption of a listener.
#[derive(Clone, Debug)]
pub struct TlsServer(pub(crate) Arc<ServerConfig>);

/// Encryption of a dialler.
#[derive(Clone, Debug)]
pub struct TlsClient {
    pub(crate) config: Arc<ClientConfig>,
    /// The name that the certificate must have; `None`: the dialled address.
    pub(crate) name: Option<ServerName<'static>>,
}

impl TlsServer {
    /// Create a new key and a self-signed certificate, for diallers that authenticate the server by the secret.
    pub fn drawn() -> Result<Self, WireError> {
        let (certificate, key) = certificate::draw()?;
        Self::new(vec![certificate], key)
    }

    /// Load a chain of certificates, the server's first, and its key, both as PEM files.
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Self, WireError> {
        let chain = read_certificates(certificates)?;
        let fault = |why: String| WireError::TlsFile { path: key.to_owned(), why };
        let key = PrivateKeyDer::from_pem_file(key).map_err(|why| fault(format!("no private key: {why}")))?;
        Self::new(chain, key)
    }

    fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, WireError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key))
            .map_err(|why| setup(&why))?;
        // No client resumes a session, and a ticket would be a message that no reader expects.
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config)))
    }
}

impl TlsClient {
    /// Authenticate the server by the secret alone, with any certificate.
    pub fn by_secret() -> Result<Self, WireError> {
        let provider = provider();
        let algorithms = provider.signature_verification_algorithms;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|why| setup(&why))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(BySecret(algorithms)))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        // The name would only reveal the server to observers of the network.
        config.enable_sni = false;
        Ok(Self { config: Arc::new(config), name: None })
    }

    /// Authenticate the server by the secret and by a certificate that one of `authorities`, a PEM file, has
    /// signed for `name`. `name`: `None` if the certificate is for the dialled address.
    pub fn by_authorities(authorities: &Path, name: Option<&str>) -> Result<Self, WireError> {
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(authorities)? {
            roots.add(certificate).map_err(|why| WireError::TlsFile {
                path: authorities.to_owned(),
                why: format!("no authority: {why}"),
            })?;
        }
        let name = name
            .map(|name| {
                ServerName::try_from(name.to_owned())
                    .map_err(|_| WireError::TlsSetup { why: format!("{name:?} is not the name of a server") })
            })
            .transpose()?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|why| setup(&why))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), name })
    }
}

/// Accepts any certificate whose key the server has. The module's header explains why this is safe.
#[derive(Debug)]
struct BySecret(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for BySecret {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// ring, explicitly: otherwise rustls would use the process's default, and panic if there is none.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, WireError> {
    let fault = |why: String| WireError::TlsFile { path: path.to_owned(), why };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|why| fault(format!("no certificates: {why}")))?;
    if certificates.is_empty() {
        return Err(fault("it has no certificate; it should begin with -----BEGIN CERTIFICATE-----".into()));
    }
    Ok(certificates)
}

fn setup(why: &rustls::Error) -> WireError {
    WireError::TlsSetup { why: why.to_string() }
}

#[cfg(test)]
pub(crate) mod process_tests;
#[cfg(test)]
mod tests;
