// SPDX-License-Identifier: Apache-2.0
//! A testbed process and a minimal HTTP client, which exposes all bytes on the wire.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value;

/// A running `foresee-testbed`; ends with this value.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    pub(crate) port: u16,
}

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_foresee-testbed"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the testbed starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let ready: Value = serde_json::from_str(&line).expect("one line of JSON");
        let port = u16::try_from(ready["port"].as_u64().expect("a port")).expect("a port");
        let stdin = child.stdin.take();
        Self { child, stdin, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        Connection { stream: BufReader::new(stream) }
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.connect().request("GET", path, &[], b"").expect("an answer")
    }

    pub(crate) fn counters(&self) -> Value {
        serde_json::from_slice(&self.get("/-/counters").body).expect("JSON")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Response {
        self.connect().request("POST", path, &[], body.as_bytes()).expect("an answer")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stdin.take();
        let _ = self.child.wait();
    }
}

/// One connection, for sequential requests.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl Connection {
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Response> {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: testbed\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        self.answer(method == "HEAD")
    }

    fn answer(&mut self, is_head: bool) -> io::Result<Response> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        let length = response.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        if !is_head && status != 304 {
            response.body.resize(length, 0);
            self.stream.read_exact(&mut response.body)?;
        }
        Ok(response)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}
