// SPDX-License-Identifier: Apache-2.0
//! Throttled, counting HTTP and S3 origin for demo, tests and benchmarks.
