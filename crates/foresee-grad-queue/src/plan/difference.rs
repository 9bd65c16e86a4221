// SPDX-License-Identifier: Apache-2.0
//! The first difference that prevents two ranks from sharing a plan.
//!
//! Packet size, order and classes may differ, because one rank's values apply to all. A digest would only show that
//! plans differ; a user needs the tensor and the field.

use std::fmt;

use super::{Op, Plan, PlanConfig, TensorSpec};
use crate::TensorId;

/// A difference between two plans.
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
}

impl Field {
    const fn name(self) -> &'static str {
        match self {
            Self::Wire => "dtype on the wire",
            Self::Shares => "servers' shares",
            Self::Presence | Self::BufferPresence => "presence",
            Self::Dtype => "dtype",
            Self::Shape => "shape",
            Self::Strides => "strides",
            Self::Op => "operation",
        }
    }
}

impl Difference {
    /// The difference as text. `here` and `there` name the origin of each plan, such as "on rank 0".
    pub fn between(&self, here: &str, there: &str) -> String {
        let Self { tensor, field, ours, theirs } = self;
        let what = match (tensor, field) {
            (Some(tensor), Field::Presence | Field::BufferPresence) => format!("tensor '{tensor}'"),
            (Some(tensor), _) => format!("tensor '{tensor}': {}", field.name()),
            (None, _) => field.name().to_owned(),
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
    /// The first difference from `other`; `None` if their ranks can share one plan.
    ///
    /// Settings come first, then tensors in this plan's order, then those that only `other` has.
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let (ours, theirs) = (self.config(), other.config());
        let setting = |field, ours: String, theirs: String| {
            (ours != theirs).then_some(Difference { tensor: None, field, ours, theirs })
        };
        let shares = |config: &PlanConfig| format!("{:?}", config.pattern.shares());
        setting(Field::Wire, ours.wire.to_string(), theirs.wire.to_string())
            .or_else(|| setting(Field::Shares, shares(ours), shares(theirs)))
            .or_else(|| self.tensor_difference(other))
    }

    /// Return the id in this plan for each tensor of `own`, in its order.
    ///
    /// # Errors
    /// The first difference in a tensor's presence, dtype, shape, strides or operation; `theirs` has the values
    /// of `own`.
    pub fn align(&self, own: &Self) -> Result<Vec<TensorId>, Difference> {
        match self.tensor_difference(own) {
            Some(difference) => Err(difference),
            None => Ok(own.tensors.iter().filter_map(|entry| self.find(&entry.spec.name)).collect()),
        }
    }

    fn tensor_difference(&self, other: &Self) -> Option<Difference> {
        let one_sided = |spec: &TensorSpec, ours: &str, theirs: &str| Difference {
            tensor: Some(spec.name.clone()),
            field: if spec.op == Op::Sum { Field::BufferPresence } else { Field::Presence },
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
        };
        let specs = self.tensors.iter().map(|entry| &entry.spec);
        let mut differences =
            specs.filter_map(|spec| match other.find(&spec.name).and_then(|id| other.tensor(id)) {
                Some(found) => spec_difference(spec, found),
                None => Some(one_sided(spec, "given", "missing")),
            });
        let mut extra = other.tensors.iter().filter(|entry| self.find(&entry.spec.name).is_none());
        differences.next().or_else(|| Some(one_sided(&extra.next()?.spec, "missing", "given")))
    }
}

fn spec_difference(ours: &TensorSpec, theirs: &TensorSpec) -> Option<Difference> {
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
