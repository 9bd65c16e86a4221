// SPDX-License-Identifier: Apache-2.0
//! The scheduling policies of papers and frameworks, one constructor each.
//!
//! All policies run in the same scheduler, with the same sockets, server and packets, so that measured
//! differences are differences of scheduling. A policy is data: the rules of a rank's scheduler, those of a
//! server's, the packet size, and when a server answers.

use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;

use foresee_units::Bytes;

use crate::schedule::{Order, Rules, Scope, Window};

/// When a server sends sums back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// When the whole tensor is summed.
    Tensor,
    /// For each packet, when it is summed.
    Packet,
}

/// A scheduling policy, for benchmarks and for runs.
///
/// # Examples
/// ```
/// # use foresee_grad_queue::{Order, Policy, Window};
/// let (paper, ours) = (Policy::mercury(), Policy::foresee());
/// assert_eq!(paper.push().order, ours.push().order);
/// assert_eq!((paper.push().window, ours.push().window), (Window::None, Window::Interface));
/// assert_eq!((paper.pull().order, ours.pull().order), (Order::Readiness, Order::Class));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    name: &'static str,
    push: Rules,
    pull: Rules,
    partition: Option<NonZeroU32>,
    answer: Answer,
}

/// Order of readiness, with the sockets' default behaviour.
const NATIVE: Rules = Rules {
    order: Order::Readiness,
    scope: Scope::Interface,
    window: Window::None,
    window_bytes: None,
    window_factor: NonZeroU32::MIN,
    window_factor_more: 0,
    credit: None,
};
/// The same on a server.
const NATIVE_PULL: Rules = pulled(NATIVE);
/// A server's rules. Its window is three times a rank's for one rank, and two more for each further one. The
/// ranks' windows already bound a server's queues, because it sends only what was pushed to it. Its
/// acknowledgments arrive late, behind all bytes that the ranks have in flight to it (`docs/notes/028`).
const fn pulled(rules: Rules) -> Rules {
    Rules { window_factor: NonZeroU32::new(3).expect("not 0"), window_factor_more: 2, ..rules }
}
/// [`NATIVE`] for first-in-first-out order on both sides: nothing is urgent, so the window may be large enough to
/// keep all links busy. With three times a rank's window, steps at 200 Mbit/s took 4 to 5 % longer
/// (`docs/notes/015`).
const FIFO: Rules = Rules { window_factor: NonZeroU32::new(8).expect("not 0"), ..NATIVE };

impl Policy {
    /// Every policy, with its default settings.
    pub const ALL: [Self; 8] = [
        Self::foresee(),
        Self::mercury(),
        Self::mercury_windowed(),
        Self::mercury_interface(),
        Self::fifo_tensor(),
        Self::fifo_packet(),
        Self::partition(FAIR_PARTITION, FAIR_CREDIT),
        Self::partition_unbounded(BYTEPS_PARTITION),
    ];

    /// The default: class order over all connections of an interface, in both directions, with a window on the
    /// sum of the bytes in flight.
    pub const fn foresee() -> Self {
        Self {
            name: "foresee",
            push: Rules::new(),
            pull: pulled(Rules::new()),
            partition: None,
            answer: Answer::Packet,
        }
    }

    /// Tensors in the order in which backward yields them; the server answers when it has summed a whole tensor.
    /// This is wait-free backpropagation (Zhang et al., "Poseidon", ATC 2017) with a plain parameter server.
    ///
    /// Its window, if any, is large: nothing is urgent, and whole tensors return at once, which delays the
    /// acknowledgments of concurrent pushes.
    pub const fn fifo_tensor() -> Self {
        Self { name: "fifo_tensor", push: FIFO, pull: FIFO, partition: None, answer: Answer::Tensor }
    }

    /// The same order, but a server answers packet by packet: Mercury without preemption.
    pub const fn fifo_packet() -> Self {
        Self { name: "fifo_packet", answer: Answer::Packet, ..Self::fifo_tensor() }
    }

    /// `ByteScheduler` (Peng et al., SOSP 2019): partitions of `size` bytes go in class order, the next one when
    /// an acknowledgment frees credit; at most `credit` bytes are in flight. The paper tunes both values per
    /// model; 4 MB and 16 MB are a fair start. A benchmark should use the best of a grid.
    pub const fn partition(size: NonZeroU32, credit: NonZeroU64) -> Self {
        let push = Rules { order: Order::Class, credit: Some(credit), ..NATIVE };
        Self { name: "partition", push, pull: NATIVE_PULL, partition: Some(size), answer: Answer::Packet }
    }

    /// Unmodified `BytePS` (Jiang et al., OSDI 2020): partitions, without scheduling and without a bound. Its
    /// PyTorch plugin passes no priority, so tensors go in order of readiness. It sorts tensors that are ready at
    /// the same time by name, so callers must offer them in that order. Its default size is [`BYTEPS_PARTITION`].
    pub const fn partition_unbounded(size: NonZeroU32) -> Self {
        let answer = Answer::Packet;
        Self { name: "partition_unbounded", push: NATIVE, pull: NATIVE_PULL, partition: Some(size), answer }
    }

    /// The paper's policy (Duan et al., "Mercury", TPDS 2023): packets in class order on each connection
    /// separately, with the sockets' default behaviour; answers packet by packet, in order of readiness.
    pub const fn mercury() -> Self {
        let push = Rules { order: Order::Class, scope: Scope::Connection, ..NATIVE };
        Self { name: "mercury", push, pull: NATIVE_PULL, partition: None, answer: Answer::Packet }
    }

    /// Ablation, first step from [`Policy::mercury`] to [`Policy::foresee`]: a window on each connection.
    pub const fn mercury_windowed() -> Self {
        Self { name: "mercury_windowed", ..Self::mercury() }.windowed(Window::Connection)
    }

    /// Ablation, second step: one scheduler over all connections, with the window on their sum. Only the priority
    /// of pulls is missing.
    pub const fn mercury_interface() -> Self {
        let mercury = Self::mercury();
        let push = Rules { scope: Scope::Interface, ..mercury.push };
        Self { name: "mercury_interface", push, ..mercury }.windowed(Window::Interface)
    }

    /// The same policy with another kind of window in both directions, such as `partition` with Foresee's window.
    #[must_use]
    pub const fn windowed(mut self, window: Window) -> Self {
        self.push.window = window;
        self.pull.window = window;
        self
    }

    /// The same policy with a window of fixed size in both directions, for sweeps.
    #[must_use]
    pub const fn with_window_bytes(mut self, bytes: Bytes) -> Self {
        self.push.window_bytes = Some(bytes);
        self.pull.window_bytes = Some(bytes);
        self
    }

    /// The rules of a rank's scheduler.
    pub const fn push(&self) -> Rules {
        self.push
    }

    /// The rules of a server's scheduler.
    pub const fn pull(&self) -> Rules {
        self.pull
    }

    /// The size into which tensors are cut when the link's packet size is `packet`: the partition if the policy
    /// has one. Schedulers still take `packet`, because the window depends on the link.
    pub fn packet_bytes(&self, packet: NonZeroU32) -> NonZeroU32 {
        self.partition.unwrap_or(packet)
    }

    /// When a server sends sums back.
    pub const fn answer(&self) -> Answer {
        self.answer
    }

    /// The name of the constructor.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

/// A policy as text, for settings: the name of its constructor, and values that differ from its defaults.
///
/// `partition` has partitions of 4 MB and a credit of 16 MB, `partition_unbounded` has [`BYTEPS_PARTITION`]. Both
/// accept `size=BYTES`, the first also `credit=BYTES`. Every policy accepts `window=interface`,
/// `window=connection` or `window=none`, and `window=BYTES` for a fixed size.
///
/// # Examples
/// ```
/// # use foresee_grad_queue::{Policy, Window};
/// assert_eq!("mercury".parse(), Ok(Policy::mercury()));
/// let policy: Policy = "partition,size=1000000,credit=2000000,window=interface".parse()?;
/// assert_eq!((policy.push().credit.unwrap().get(), policy.push().window), (2_000_000, Window::Interface));
/// assert!("fifo".parse::<Policy>().is_err());
/// # Ok::<(), foresee_grad_queue::PolicyError>(())
/// ```
impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let fault = |rule: &str| PolicyError { text: text.to_owned(), rule: rule.to_owned() };
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let known = Self::ALL.into_iter().find(|policy| policy.name == name);
        let names = || Self::ALL.map(|policy| policy.name).join(", ");
        let mut policy = known.ok_or_else(|| fault(&format!("it is one of {}", names())))?;
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| fault("settings are written key=value"))?;
            policy = match key {
                "window" => policy.with_window(value),
                "size" => policy.with_size(value),
                "credit" => policy.with_credit(value),
                _ => None,
            }
            .ok_or_else(|| fault(&format!("it takes no {key}={value}")))?;
        }
        Ok(policy)
    }
}

impl Policy {
    fn with_window(self, value: &str) -> Option<Self> {
        Some(match value {
            "none" => self.windowed(Window::None),
            "connection" => self.windowed(Window::Connection),
            "interface" => self.windowed(Window::Interface),
            // A size needs a window.
            _ if self.push.window == Window::None => return None,
            bytes => self.with_window_bytes(Bytes::new(bytes.parse().ok()?)),
        })
    }

    fn with_size(self, value: &str) -> Option<Self> {
        let size: NonZeroU32 = value.parse().ok()?;
        self.partition.map(|_| Self { partition: Some(size), ..self })
    }

    fn with_credit(self, value: &str) -> Option<Self> {
        let credit: NonZeroU64 = value.parse().ok()?;
        let push = Rules { credit: Some(credit), ..self.push };
        self.push.credit.map(|_| Self { push, ..self })
    }
}

/// A text that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy '{text}': {rule}")]
pub struct PolicyError {
    text: String,
    rule: String,
}

/// Default partition of an untuned `ByteScheduler`, between the values that its authors found for their models.
const FAIR_PARTITION: NonZeroU32 = NonZeroU32::new(4_000_000).expect("not 0");
const FAIR_CREDIT: NonZeroU64 = NonZeroU64::new(16_000_000).expect("not 0");

/// Default partition of `BytePS`, in bytes.
pub const BYTEPS_PARTITION: NonZeroU32 = NonZeroU32::new(4_096_000).expect("not 0");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_the_ablation_changes_only_its_named_property() {
        let steps =
            [Policy::mercury(), Policy::mercury_windowed(), Policy::mercury_interface(), Policy::foresee()];
        let windows = steps.map(|policy| policy.push().window);
        assert_eq!(windows, [Window::None, Window::Connection, Window::Interface, Window::Interface]);
        let scopes = steps.map(|policy| policy.push().scope);
        assert_eq!(scopes, [Scope::Connection, Scope::Connection, Scope::Interface, Scope::Interface]);
        assert!(steps.iter().all(|policy| policy.push().order == Order::Class));
        assert_eq!(steps[2].push(), steps[3].push());
        assert_ne!(steps[2].pull(), steps[3].pull());
    }

    #[test]
    fn each_name_parses_to_its_policy_and_other_texts_are_refused() {
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        for word in ["", "Foresee", "foresee ", "fifo", "foresee,", "foresee,size=64", "mercury,window=60000"]
        {
            assert!(word.parse::<Policy>().is_err(), "{word}");
        }
        let fault = "partition_unbounded,credit=5".parse::<Policy>().unwrap_err().to_string();
        assert_eq!(fault, "policy 'partition_unbounded,credit=5': it takes no credit=5");
    }

    #[test]
    fn settings_follow_the_name() {
        let fixed: Policy = "foresee,window=60000".parse().unwrap();
        assert_eq!(fixed, Policy::foresee().with_window_bytes(Bytes::new(60_000)));
        let link = NonZeroU32::new(37_440).unwrap();
        let small: Policy = "partition_unbounded,size=6400".parse().unwrap();
        assert_eq!(small.packet_bytes(link).get(), 6400);
        let credited: Policy = "partition,credit=2000000".parse().unwrap();
        assert_eq!(
            (credited.push().credit.map(NonZeroU64::get), credited.pull().credit),
            (Some(2_000_000), None)
        );
        let opened: Policy = "foresee,window=none".parse().unwrap();
        assert_eq!((opened.push().window, opened.pull().window), (Window::None, Window::None));
    }

    #[test]
    fn a_partition_is_the_packet_and_carries_its_credit() {
        let (size, credit) = (NonZeroU32::new(4_000_000).unwrap(), NonZeroU64::new(16_000_000).unwrap());
        let link = NonZeroU32::new(37_440).unwrap();
        let policy = Policy::partition(size, credit);
        assert_eq!(policy.packet_bytes(link), size);
        assert_eq!(policy.push().credit, Some(credit));
        assert_eq!(policy.pull().credit, None);
        assert_eq!(policy.windowed(Window::Interface).push().window, Window::Interface);
        assert_eq!(Policy::foresee().packet_bytes(link), link);
        assert_eq!(Policy::partition_unbounded(BYTEPS_PARTITION).packet_bytes(link).get(), 4_096_000);
    }
}
