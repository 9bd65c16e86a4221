// SPDX-License-Identifier: Apache-2.0
//! The first difference between two plans.
//!
//! A digest only shows that plans differ; a user needs the tensor and the field. Only the first difference is
//! reported.

use std::fmt;

use super::{Op, Plan, TensorSpec};
use crate::TensorId;

/// The first difference between two plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The tensor's name, if the difference concerns one.
    pub tensor: Option<String>,
    /// The field that differs.
    pub field: Field,
    /// The value in this plan.
    pub ours: String,
    /// The value in the other plan.
    pub theirs: String,
}

/// A field of a plan, or of a tensor in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// Bytes of a packet.
    PacketBytes,
    /// The dtype on the wire.
    Wire,
    /// The servers' shares.
    Shares,
    /// Whether both plans have the tensor.
    Presence,
    /// Whether both plans have a tensor that only one rank pushes, such as a buffer.
    BufferPresence,
    /// The tensor's dtype.
    Dtype,
    /// Its shape.
    Shape,
    /// Its strides.
    Strides,
    /// The operation of the servers.
    Op,
    /// Its class.
    Class,
    /// Its place in the order of first use.
    Place,
}

impl Field {
    const fn words(self) -> &'static str {
        match self {
            Self::PacketBytes => "packet size",
            Self::Wire => "dtype on the wire",
            Self::Shares => "servers' shares",
            Self::Presence | Self::BufferPresence => "presence",
            Self::Dtype => "dtype",
            Self::Shape => "shape",
            Self::Strides => "strides",
            Self::Op => "operation",
            Self::Class => "class",
            Self::Place => "place in the order of first use",
        }
    }
}

impl Difference {
    /// The difference as text. `here` and `there` name the origin of each plan, such as "on rank 0".
    pub fn between(&self, here: &str, there: &str) -> String {
        let Self { tensor, field, ours, theirs } = self;
        let what = match (tensor, field) {
            (Some(tensor), Field::Presence | Field::BufferPresence) => format!("tensor '{tensor}'"),
            (Some(tensor), _) => format!("tensor '{tensor}': {}", field.words()),
            (None, _) => field.words().to_owned(),
        };
        format!("{what} is {ours} {here} and {theirs} {there}")
    }

    /// The remedy for the user.
    pub const fn remedy(&self) -> &'static str {
        match self.field {
            Field::Wire => "pass the same comm_dtype= on all ranks",
            Field::Shares => "pass the same servers in the same order on all ranks",
            Field::BufferPresence => "every rank must build the same model and pass the same buffers=",
            _ => "every rank must build the same model",
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.between("in one plan", "in the other"))
    }
}

impl Plan {
    /// The first difference from `other`, or `None` if the plans are equal.
    ///
    /// Settings come first, then tensors in this plan's order, then those that only `other` has.
    pub fn differs(&self, other: &Self) -> Option<Difference> {
        self.settings_differ(other).or_else(|| {
            self.tensors_differ(other, |spec, place, found, at| {
                spec_differs(spec, found)
                    .or_else(|| differ(spec, Field::Class, &spec.class, &found.class))
                    .or_else(|| differ(spec, Field::Place, &place, &at.0))
            })
        })
    }

    /// Return the id in this plan for each tensor of `own`, in its order. Order and classes may differ, because
    /// one rank's values apply to all.
    ///
    /// # Errors
    /// The first difference in a tensor's presence, dtype, shape, strides or operation; `theirs` has the values
    /// of `own`.
    pub fn align(&self, own: &Self) -> Result<Vec<TensorId>, Difference> {
        match self.tensors_differ(own, |spec, _, found, _| spec_differs(spec, found)) {
            Some(difference) => Err(difference),
            None => Ok(own.tensors.iter().filter_map(|entry| self.find(&entry.spec.name)).collect()),
        }
    }

    fn settings_differ(&self, other: &Self) -> Option<Difference> {
        let (ours, theirs) = (self.config(), other.config());
        let setting = |field, ours: String, theirs: String| {
            (ours != theirs).then_some(Difference { tensor: None, field, ours, theirs })
        };
        setting(Field::PacketBytes, ours.packet_bytes.to_string(), theirs.packet_bytes.to_string())
            .or_else(|| setting(Field::Wire, ours.wire.to_string(), theirs.wire.to_string()))
            .or_else(|| {
                let shares = |config: &super::PlanConfig| format!("{:?}", config.pattern.shares());
                setting(Field::Shares, shares(ours), shares(theirs))
            })
    }

    fn tensors_differ(
        &self,
        other: &Self,
        compare: impl Fn(&TensorSpec, u32, &TensorSpec, TensorId) -> Option<Difference>,
    ) -> Option<Difference> {
        let one_sided = |spec: &TensorSpec, ours: &str, theirs: &str| Difference {
            tensor: Some(spec.name.clone()),
            field: if spec.op == Op::Sum { Field::BufferPresence } else { Field::Presence },
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
        };
        for (place, entry) in (0_u32..).zip(&self.tensors) {
            let found = other.find(&entry.spec.name).and_then(|at| Some((at, other.tensor(at)?)));
            let difference = match found {
                Some((at, found)) => compare(&entry.spec, place, found, at),
                None => Some(one_sided(&entry.spec, "given", "missing")),
            };
            if difference.is_some() {
                return difference;
            }
        }
        let extra = other.tensors.iter().find(|entry| self.find(&entry.spec.name).is_none());
        extra.map(|entry| one_sided(&entry.spec, "missing", "given"))
    }
}

fn spec_differs(ours: &TensorSpec, theirs: &TensorSpec) -> Option<Difference> {
    differ(ours, Field::Dtype, &ours.dtype, &theirs.dtype)
        .or_else(|| differ(ours, Field::Shape, &List(&ours.shape), &List(&theirs.shape)))
        .or_else(|| differ(ours, Field::Strides, &List(&ours.strides), &List(&theirs.strides)))
        .or_else(|| differ(ours, Field::Op, &ours.op, &theirs.op))
}

fn differ<T: PartialEq + fmt::Display>(
    spec: &TensorSpec,
    field: Field,
    ours: &T,
    theirs: &T,
) -> Option<Difference> {
    (ours != theirs).then(|| Difference {
        tensor: Some(spec.name.clone()),
        field,
        ours: ours.to_string(),
        theirs: theirs.to_string(),
    })
}

/// A list, formatted as in Python.
#[derive(PartialEq)]
struct List<'a, T>(&'a [T]);

impl<T: fmt::Debug> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
