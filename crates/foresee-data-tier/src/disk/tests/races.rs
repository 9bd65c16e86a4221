// SPDX-License-Identifier: Apache-2.0
//! Operations that meet: bytes never come from a place that was given to another sample meanwhile.

use std::collections::HashMap;

use super::*;

#[test]
fn reads_during_eviction_never_see_foreign_bytes() {
    let dir = TempDir::new().unwrap();
    let woken = Arc::new((Mutex::new(0_u32), Condvar::new()));
    let completions = {
        let woken = Arc::clone(&woken);
        Completions::new(move || {
            *woken.0.lock().unwrap() += 1;
            woken.1.notify_all();
        })
    };
    let (tier, _) = DiskTier::open(&config(dir.path(), 2 << 20), completions.clone()).unwrap();
    let len = |id: u64| if id.is_multiple_of(3) { 80_000 } else { 20_000 };
    let (mut reads, mut ended, mut done) = (HashMap::new(), 0, Vec::new());
    for turn in 0..2000_u64 {
        let id = turn * 31 % 50;
        let payload = Payload::from_vec(content(id, len(id)));
        tier.submit(Op::Write { ticket: Ticket(3 * turn), key: key(id), payload });
        let other = turn * 17 % 50;
        let (dest, scratch) = Dest::from_vec(vec![0; len(other)]);
        reads.insert(Ticket(3 * turn + 1), (other, scratch));
        tier.submit(Op::Read { ticket: Ticket(3 * turn + 1), key: key(other), offset: 0, dest });
        tier.submit(Op::Drop { ticket: Ticket(3 * turn + 2), key: key((turn * 13 + 5) % 50) });
        completions.drain(&mut done);
        // No more than 64 ends are outstanding: the bound that a driver keeps.
        while (turn + 1) * 3 - ended - done.len() as u64 > 64 {
            let guard = woken.0.lock().unwrap();
            drop(woken.1.wait_timeout(guard, Duration::from_millis(1)).unwrap());
            completions.drain(&mut done);
        }
        for done in done.drain(..) {
            ended += 1;
            if let Some((id, scratch)) = reads.remove(&done.ticket) {
                assert_ne!(done.outcome, Outcome::Corrupt, "a pinned place is not written");
                if done.outcome == Outcome::Ok {
                    assert_eq!(scratch.into_bytes().unwrap(), content(id, len(id)));
                }
            }
        }
    }
    tier.close(GRACE);
    completions.drain(&mut done);
    assert_eq!(ended + done.len() as u64, 6000, "every ticket ended once");
}
