//! The names of all variables that Towpath reads, and the known word that is nearest to one that nothing knows: a mistyped name must not be
//! ignored without a word.

use crate::variables;

/// What the names of Towpath's variables begin with.
const PREFIX: &str = "TOWPATH_";

/// Variables that the service, the command line or the library reads, sorted.
pub const VARIABLES: [&str; 74] = [
    "TOWPATH_ACCURATE_ECN",
    "TOWPATH_ADDRESS",
    "TOWPATH_ALLOW_GIDS",
    "TOWPATH_ALLOW_UIDS",
    "TOWPATH_BUFFER_INITIAL",
    "TOWPATH_CC_AGENTS",
    "TOWPATH_CC_ALLOW_UIDS",
    "TOWPATH_CC_EVERY_ACK",
    "TOWPATH_CC_RATE_MAX",
    "TOWPATH_CC_REPORTS",
    "TOWPATH_CC_RULES",
    "TOWPATH_CC_SOCKET",
    "TOWPATH_CC_WINDOW_MAX",
    "TOWPATH_CHANNEL",
    "TOWPATH_CHANNEL_ADDRESSES",
    "TOWPATH_CHANNEL_COUNT",
    "TOWPATH_CHANNEL_PEERS",
    "TOWPATH_CHANNEL_POLICY",
    "TOWPATH_CHANNEL_PORT",
    "TOWPATH_CHANNEL_RULES",
    "TOWPATH_CHANNEL_SECRET",
    "TOWPATH_CHECK",
    "TOWPATH_CHECK_POINTERS",
    "TOWPATH_CONFIG",
    "TOWPATH_CONGESTION",
    "TOWPATH_CONTROL",
    "TOWPATH_CORES",
    "TOWPATH_DISABLE",
    "TOWPATH_ECN",
    "TOWPATH_EXPRESS_PORTS",
    "TOWPATH_FAULT_CORRUPT",
    "TOWPATH_FAULT_DUPLICATE",
    "TOWPATH_FAULT_LOSS",
    "TOWPATH_FAULT_REORDER",
    "TOWPATH_FAULT_SEED",
    "TOWPATH_FAULT_TRUNCATE",
    "TOWPATH_GATEWAY",
    "TOWPATH_HOP_LIMIT",
    "TOWPATH_HOST_ADDRESS",
    "TOWPATH_IO_URING",
    "TOWPATH_LOG",
    "TOWPATH_LOG_LEVEL",
    "TOWPATH_MAC",
    "TOWPATH_MAX_APPLICATIONS",
    "TOWPATH_MAX_FLOWS",
    "TOWPATH_MAX_MEMORY_MIB",
    "TOWPATH_MAX_SOCKETS",
    "TOWPATH_MTU",
    "TOWPATH_NETNS",
    "TOWPATH_NO_CHECKSUM_OFFLOAD",
    "TOWPATH_NO_GSO",
    "TOWPATH_POLICY",
    "TOWPATH_PORT",
    "TOWPATH_PORT_NAME",
    "TOWPATH_PRELOAD",
    "TOWPATH_PRIVATE",
    "TOWPATH_PROFILE",
    "TOWPATH_PYTHON",
    "TOWPATH_QUICK_ACK",
    "TOWPATH_REGION_MIB",
    "TOWPATH_REGION_SLOTS",
    "TOWPATH_REQUIRE",
    "TOWPATH_RING_MAX",
    "TOWPATH_RING_MIN",
    "TOWPATH_SACK",
    "TOWPATH_SEND_BUFFER",
    "TOWPATH_SHARING",
    "TOWPATH_SPIN_US",
    "TOWPATH_SYSCALL_FILTER",
    "TOWPATH_TIMESTAMPS",
    "TOWPATH_TRUST_UID",
    "TOWPATH_USER",
    "TOWPATH_VERSIONS",
    "TOWPATH_WINDOW_SCALING",
];

/// Variables of Towpath's own tests are named by this, or are in [`OF_TESTS`].
const TEST_PREFIX: &str = "TOWPATH_TEST_";
/// Further variables that only Towpath's own tests read.
const OF_TESTS: [&str; 4] =
    ["TOWPATH_MODEL_SEED", "TOWPATH_MODEL_SEEDS", "TOWPATH_PYTHONS", "TOWPATH_RELEASED_AGENTS"];

/// The variables in the environment of this process that look like Towpath's and are not, each as a sentence that says so and names the known
/// one that was perhaps meant.
#[must_use]
pub fn unknown_variables() -> Vec<String> {
    let names = variables::names().into_iter().filter(|name| name.starts_with(PREFIX));
    names.filter_map(|name| complaint(&name)).collect()
}

/// What is wrong with a variable of that name; `None`: nothing is.
fn complaint(name: &str) -> Option<String> {
    let is_known = VARIABLES.contains(&name) || OF_TESTS.contains(&name) || name.starts_with(TEST_PREFIX);
    (!is_known).then(|| {
        let rest = |name: &'static str| name.strip_prefix(PREFIX).unwrap_or(name);
        let meant = nearest(&name[PREFIX.len()..], VARIABLES.into_iter().map(rest));
        let advice = meant.map_or("unset it".to_owned(), |word| format!("did you mean {PREFIX}{word}?"));
        format!("{name} is set, and there is no such variable: it changes nothing; {advice}")
    })
}

/// The known word that was most likely meant by `word`; `None`: there is none like it. Two words are alike if one begins with the other, or
/// if few letters differ: a third of the word, and three at most. A swap of neighbours counts as one.
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // `-` and `_` are the same key in a flag and in a file.
    let letters = |text: &str| text.to_lowercase().replace('-', "_").chars().collect::<Vec<char>>();
    let word = letters(word);
    let most = (word.len() / 3).clamp(1, 3);
    let measured = known.into_iter().map(|candidate| {
        let other = letters(candidate);
        let is_begun =
            word.len() >= 3 && other.len() >= 3 && (word.starts_with(&other) || other.starts_with(&word));
        let distance = distance(&word, &other);
        (if is_begun { distance.min(most) } else { distance }, candidate)
    });
    measured
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, near)| near)
}

/// The number of letters to insert, delete, change or swap with their neighbour to make `b` of `a` (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    // Rows of the table: the distances of the first i letters of `a` from the first j of `b`.
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_variable_is_named_with_the_one_that_was_meant() {
        for (name, meant) in [
            ("TOWPATH_CORS", Some("did you mean TOWPATH_CORES?")),
            ("TOWPATH_LOGLEVEL", Some("did you mean TOWPATH_LOG_LEVEL?")),
            ("TOWPATH_REQUIER", Some("did you mean TOWPATH_REQUIRE?")),
            ("TOWPATH_DISABLED", Some("did you mean TOWPATH_DISABLE?")),
            ("TOWPATH_XYZZY", Some("unset it")),
            ("TOWPATH_", Some("unset it")),
            ("TOWPATH_CORES", None),
            ("TOWPATH_TEST_PLACE", None),
            ("TOWPATH_MODEL_SEED", None),
        ] {
            let told = complaint(name);
            assert_eq!(told.is_some(), meant.is_some(), "{name}: {told:?}");
            let is_said = |told: &String| told.contains(name) && told.ends_with(meant.unwrap_or("?"));
            assert!(told.as_ref().is_none_or(is_said), "{name}: {told:?}");
        }
    }

    #[test]
    fn the_nearest_word_is_one_that_is_like_it() {
        let levels = ["error", "warn", "info", "debug", "trace", "off"];
        for (word, meant) in [
            ("warning", Some("warn")),
            ("WARN", Some("warn")),
            ("err", Some("error")),
            ("inof", Some("info")),
            ("verbose", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, levels), meant, "{word}");
        }
        assert_eq!(nearest("region-mib", ["ring_max", "region_mib"]), Some("region_mib"));
    }

    #[test]
    fn the_variables_are_each_listed_once() {
        let mut sorted = VARIABLES.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted, VARIABLES);
    }
}
