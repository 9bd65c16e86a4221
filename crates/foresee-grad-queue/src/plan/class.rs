// SPDX-License-Identifier: Apache-2.0
//! Priority classes from the order of first use.
//!
//! The plan accepts any classes, because a communication hook numbers buckets instead. This module derives
//! classes from a model.

use crate::QueueError;

/// The number of classes: a bit set of four words.
const CLASSES: usize = 256;

/// Return the class of each tensor from its position in order of first use: 0 is needed first.
///
/// `with` has one entry per tensor, in that order: `None` for a class of its own, or the index of an earlier
/// tensor of the same layer whose class a buffer shares. Beyond 256 classes, neighbours share one, as evenly as
/// possible.
///
/// # Errors
/// [`QueueError::ClassOfNone`] if a tensor shares the class of a later tensor, of itself, or of one that shares
/// itself.
///
/// # Examples
/// ```
/// let classes = foresee_grad_queue::classes(&[None, None, Some(1), None]).unwrap();
/// assert_eq!(classes, [0, 1, 1, 2]);
/// ```
pub fn classes(with: &[Option<usize>]) -> Result<Vec<u8>, QueueError> {
    let own = with.iter().filter(|with| with.is_none()).count();
    let mut rank = 0;
    let mut classes: Vec<u8> = Vec::with_capacity(with.len());
    for (index, shared) in with.iter().enumerate() {
        let class = if let Some(other) = *shared {
            if other >= index || with[other].is_some() {
                return Err(QueueError::ClassOfNone { index, with: other });
            }
            classes[other]
        } else {
            let class = if own <= CLASSES { rank } else { rank * CLASSES / own };
            rank += 1;
            // A position below the number of classes, or scaled to it.
            u8::try_from(class).unwrap_or(u8::MAX)
        };
        classes.push(class);
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_256_tensors_have_a_class_each() {
        let classes = classes(&[None; 256]).unwrap();
        assert!(classes.into_iter().eq(0..=u8::MAX));
    }

    #[test]
    fn beyond_256_neighbours_share_and_every_class_is_used_evenly() {
        for count in [257, 300, 1000, 4097] {
            let classes = classes(&vec![None; count]).unwrap();
            assert!(classes.is_sorted());
            let sizes: Vec<usize> = classes.chunk_by(|a, b| a == b).map(<[u8]>::len).collect();
            assert_eq!(sizes.len(), 256);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{count} tensors: {least} to {most} in a class");
        }
    }

    #[test]
    fn a_buffer_needs_an_earlier_tensor_with_a_class_of_its_own() {
        assert_eq!(classes(&[Some(0)]), Err(QueueError::ClassOfNone { index: 0, with: 0 }));
        assert_eq!(classes(&[None, Some(2), None]), Err(QueueError::ClassOfNone { index: 1, with: 2 }));
        assert_eq!(classes(&[None, Some(0), Some(1)]), Err(QueueError::ClassOfNone { index: 2, with: 1 }));
        assert_eq!(classes(&[]), Ok(vec![]));
    }
}
