//! The token buckets behind the policy's rates: which of them bound what a process sends. Reads no clock.

use super::Sending;
use flow::{Limits, RateLimit};
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};

/// The processes that share a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Sharers {
    /// All processes that the rule with this number fits.
    Rule(usize),
    /// Those of them that one user has: the rule's number and the user's.
    User(usize, u32),
}

/// All buckets that several processes share. Each lives as long as a process that it bounds.
#[derive(Debug, Default)]
pub struct Buckets {
    shared: HashMap<Sharers, Weak<RateLimit>>,
}

impl Buckets {
    /// What bounds a new process of user `uid`.
    pub fn limits(&mut self, uid: u32, sending: &Sending) -> Limits {
        let Sending { rule, per_process, per_user, of_all, share } = *sending;
        let own = per_process.map(|rate| Arc::new(RateLimit::new(rate)));
        let user = per_user.map(|rate| self.shared(Sharers::User(rule, uid), rate));
        let all = of_all.map(|rate| self.shared(Sharers::Rule(rule), rate));
        Limits::new([own, user, all].into_iter().flatten().collect(), share)
    }

    /// The bucket of these processes: the one that their earlier processes use, if the policy has not changed its rate meanwhile.
    fn shared(&mut self, sharers: Sharers, rate: NonZeroU64) -> Arc<RateLimit> {
        let present =
            self.shared.get(&sharers).and_then(Weak::upgrade).filter(|bucket| bucket.rate() == rate);
        present.unwrap_or_else(|| {
            self.shared.retain(|_, bucket| bucket.strong_count() > 0);
            let bucket = Arc::new(RateLimit::new(rate));
            self.shared.insert(sharers, Arc::downgrade(&bucket));
            bucket
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Instant;

    fn sending(rule: usize) -> Sending {
        let rate = NonZeroU64::new;
        Sending { rule, per_process: rate(4000), per_user: rate(2000), of_all: rate(3000), share: 2 }
    }

    /// True when `other` waits after a second's worth of what bounds both was sent by `one`.
    fn share_a_bucket(one: &Limits, other: &Limits) -> bool {
        let now = Instant::from_ns(1_000_000_000_000);
        one.take(now, 1 << 20);
        let waits = other.next() > now;
        // Time in which all buckets fill again.
        one.take(Instant::from_ns(1 << 60), 0);
        waits
    }

    #[test]
    fn processes_share_the_bucket_of_their_user_and_users_that_of_their_rule() {
        let mut buckets = Buckets::default();
        let limits = buckets.limits(7, &sending(1));
        assert_eq!((limits.rate(), limits.share()), (NonZeroU64::new(2000), 2));
        let (same, user) = (buckets.limits(7, &sending(1)), buckets.limits(8, &sending(1)));
        let rule = buckets.limits(7, &sending(2));
        assert!(share_a_bucket(&limits, &same));
        let mut buckets = Buckets::default();
        let only_user = Sending { of_all: None, ..sending(1) };
        let (one, other) = (buckets.limits(7, &only_user), buckets.limits(8, &only_user));
        assert!(share_a_bucket(&limits, &user) && !share_a_bucket(&limits, &rule));
        assert!(!share_a_bucket(&one, &other));
    }

    #[test]
    fn a_bucket_goes_with_its_last_process_and_a_changed_rate_begins_a_new_one() {
        let mut buckets = Buckets::default();
        let before = buckets.limits(7, &sending(1));
        let faster = Sending { per_user: NonZeroU64::new(9000), of_all: None, ..sending(1) };
        let after = buckets.limits(7, &faster);
        assert_eq!(after.rate(), NonZeroU64::new(4000));
        assert!(!share_a_bucket(&before, &after));
        drop((before, after));
        buckets.limits(9, &sending(3));
        assert_eq!(buckets.shared.len(), 2, "those of user 9 and of rule 3");
    }

    #[test]
    fn without_rates_nothing_is_kept() {
        let mut buckets = Buckets::default();
        assert_eq!(buckets.limits(7, &Sending::UNBOUNDED).rate(), None);
        assert!(buckets.shared.is_empty());
    }
}
