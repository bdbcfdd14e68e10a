//! What the machine can give the service: processors that it may use, how long they are idle, and whether programs wait for them. Reads files of
//! the kernel; what is missing there (no cgroup, no pressure) limits nothing.

use base::{Duration, Instant};
use elastic::Room;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Time between two looks at idle times: the kernel counts them in hundredths of a second.
const IDLE_LOOK: Duration = Duration::from_ms(100);
/// Time between two looks at pressure, the affinity and the quota.
const SLOW_LOOK: Duration = Duration::from_secs(1);
/// Number of processors that a `cpu_set_t` can name.
const PROCESSORS: usize = 1024;
/// Microseconds in a unit of `/proc/stat` (`USER_HZ` is 100 on every machine that Rust runs on).
const TICK_US: u64 = 10_000;

/// A count that grows with time, and when it was read.
type Reading = Option<(Instant, u64)>;

/// The files, and what they said.
#[derive(Debug)]
pub struct Machine {
    stat: Option<File>,
    pressure: Option<File>,
    /// Those of the service's cgroups, from its own to the root.
    quotas: Vec<Quota>,
    processors: Vec<usize>,
    idle: Reading,
    waited: Reading,
    slow_at: Option<Instant>,
    room: Room,
}

impl Machine {
    /// Opens the files, before the service gives up what it needs for that.
    pub fn open() -> Self {
        let [own, mounts] = ["cgroup", "mountinfo"]
            .map(|name| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default());
        let mut machine = Self {
            stat: File::open("/proc/stat").ok(),
            pressure: File::open("/proc/pressure/cpu").ok(),
            quotas: quota_places(&own, &mounts).iter().filter_map(Quota::open).collect(),
            processors: Vec::new(),
            idle: None,
            waited: None,
            slow_at: None,
            room: Room { spare: 0, pressure: 0, allowed: 1 },
        };
        machine.count_processors();
        machine
    }

    fn count_processors(&mut self) {
        let set = rustix::thread::sched_getaffinity(None);
        self.processors =
            set.map(|set| (0..PROCESSORS).filter(|cpu| set.is_set(*cpu)).collect()).unwrap_or_default();
        let quota = self.quotas.iter().filter_map(Quota::processors).min();
        let least = quota.unwrap_or(u64::MAX).min(self.processors.len() as u64).max(1);
        self.room.allowed = least.min(u64::from(u8::MAX)) as u8;
    }
}

impl elastic::Machine for Machine {
    /// What the machine can give now. Idle times and pressure are those of the last tenth of a second and the last second; at first there is
    /// nothing to spare.
    fn look(&mut self, now: Instant) -> Room {
        if self.slow_at.is_none_or(|at| SLOW_LOOK <= now.since(at)) {
            self.slow_at = Some(now);
            let before = self.processors.len();
            self.count_processors();
            if before != self.processors.len() {
                self.idle = None;
            }
            let waited = self.pressure.as_ref().and_then(read).and_then(|text| waited_us(&text));
            let share =
                passed(&mut self.waited, now, waited).map(|(us, time)| us * 100 / time.as_us().max(1));
            self.room.pressure = share.map_or(self.room.pressure, |percent| percent.min(100) as u32);
        }
        if self.idle.is_none_or(|(at, _)| IDLE_LOOK <= now.since(at)) {
            let text = self.stat.as_ref().and_then(read);
            let idle = text.map(|text| idle_us(&text, &self.processors));
            let spare = passed(&mut self.idle, now, idle).map(|(us, time)| us * 1_000 / time.as_us().max(1));
            // A reading that is old tells of another time: the service has not looked.
            self.room.spare = spare.map_or(0, |spare| spare.min(u64::from(u32::MAX)) as u32);
        }
        self.room
    }

    /// Number of processors that the service may use: by affinity, and by the quota of its cgroups, rounded up; at least 1.
    fn allowed(&self) -> u8 {
        self.room.allowed
    }
}

/// How much a count has grown since the last look, and the time of that; then keeps the new count. `None` at the first look, and after a pause of
/// more than a second.
fn passed(last: &mut Reading, now: Instant, count: Option<u64>) -> Option<(u64, Duration)> {
    let before = std::mem::replace(last, count.map(|count| (now, count)));
    let ((at, before), count) = (before?, count?);
    let time = now.since(at);
    (time <= SLOW_LOOK.times(2)).then(|| (count.saturating_sub(before), time))
}

/// The text of a file of the kernel, from its beginning.
fn read(file: &File) -> Option<String> {
    let (mut bytes, mut len) = (vec![0; 64 << 10], 0);
    loop {
        match file.read_at(&mut bytes[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(_) => return None,
        }
    }
    String::from_utf8(bytes[..len].to_vec()).ok()
}

/// Idle time of these processors since the machine started, microseconds, from `/proc/stat`. Waiting for a disk is idle time, too.
fn idle_us(stat: &str, processors: &[usize]) -> u64 {
    let of = |line: &str| {
        // The first line is the sum of all processors: it has no number.
        let numbered = line.strip_prefix("cpu").filter(|rest| !rest.starts_with(' '))?;
        let mut words = numbered.split_ascii_whitespace();
        let processor: usize = words.next()?.parse().ok()?;
        let mut times = words.map(|word| word.parse::<u64>().unwrap_or(0));
        let (idle, disk) = (times.nth(3)?, times.next().unwrap_or(0));
        processors.contains(&processor).then_some(idle + disk)
    };
    stat.lines().filter_map(of).sum::<u64>() * TICK_US
}

/// Microseconds in which a program waited for a processor since the machine started, from `/proc/pressure/cpu`.
fn waited_us(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// The files that say how much processor time a cgroup may take.
#[derive(Debug)]
enum Quota {
    /// `cpu.max` of the unified hierarchy: microseconds in each period, and the period.
    Max(File),
    /// `cpu.cfs_quota_us` and `cpu.cfs_period_us` of a hierarchy of version 1.
    Cfs([File; 2]),
}

impl Quota {
    fn open(place: &Place) -> Option<Self> {
        let open = |name: &str| File::open(format!("{}/{name}", place.folder)).ok();
        Some(match place.is_unified {
            true => Self::Max(open("cpu.max")?),
            false => Self::Cfs([open("cpu.cfs_quota_us")?, open("cpu.cfs_period_us")?]),
        })
    }

    /// Number of processors, rounded up; `None`: no quota.
    fn processors(&self) -> Option<u64> {
        match self {
            Self::Max(file) => quota(&read(file)?),
            Self::Cfs([most, period]) => quota(&format!("{} {}", read(most)?.trim(), read(period)?.trim())),
        }
    }
}

/// Number of processors of a quota, rounded up, from "MICROSECONDS PERIOD"; `None`: no quota, which is "max" in version 2 and -1 in version 1.
fn quota(text: &str) -> Option<u64> {
    let (most, period) = text.trim().split_once(' ')?;
    let (most, period): (u64, u64) = (most.parse().ok()?, period.parse().ok()?);
    (period > 0).then(|| most.div_ceil(period).max(1))
}

/// The folder of one cgroup.
#[derive(PartialEq, Eq, Debug)]
struct Place {
    folder: String,
    /// It is of the unified hierarchy (version 2).
    is_unified: bool,
}

/// The folders of the cgroups of the service and of all above them, where processor time is limited: `own` is `/proc/self/cgroup`, `mounts`
/// is `/proc/self/mountinfo`. On a hybrid system the controller is in a hierarchy of version 1, and the unified one is mounted, too.
fn quota_places(own: &str, mounts: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for line in mounts.lines() {
        let Some((mount, kind)) = line.split_once(" - ") else { continue };
        let (mut mount, mut kind) = (mount.split(' ').skip(3), kind.split(' '));
        let (Some(root), Some(folder), Some(kind), Some(options)) =
            (mount.next(), mount.next(), kind.next(), kind.nth(1))
        else {
            continue;
        };
        let is_unified = kind == "cgroup2";
        let is_of_processors = kind == "cgroup" && options.split(',').any(|option| option == "cpu");
        if !(is_unified || is_of_processors) {
            continue;
        }
        let of_hierarchy = |line: &&str| match line.split(':').nth(1) {
            Some("") => is_unified,
            Some(controllers) => !is_unified && controllers.split(',').any(|controller| controller == "cpu"),
            None => false,
        };
        let path = own.lines().find(of_hierarchy).and_then(|line| line.splitn(3, ':').nth(2)).unwrap_or("/");
        // A container sees its own cgroup as the root of the mount, and its path from there or from the host's root.
        let below = path.strip_prefix(root).unwrap_or(path);
        // A path that leads out of our namespace begins with "/..".
        let parts: Vec<&str> = below.split('/').filter(|part| !part.is_empty() && *part != "..").collect();
        places.extend((0..=parts.len()).rev().map(|depth| {
            let inner: String = parts[..depth].iter().map(|part| format!("/{part}")).collect();
            Place { folder: format!("{folder}{inner}"), is_unified }
        }));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use elastic::Machine as _;

    #[test]
    fn idle_time_is_that_of_the_processors_of_the_service() {
        let stat = "cpu  9 9 9 900 90 0 0 0 0 0\ncpu0 1 2 3 100 10 7 7\ncpu1 1 2 3 200 20 7 7\ncpu12 1 1 1 5 0\nintr 1 2\n";
        assert_eq!(idle_us(stat, &[0]), 110 * TICK_US);
        assert_eq!(idle_us(stat, &[1, 12]), 225 * TICK_US);
        assert_eq!(idle_us(stat, &[9]), 0, "the sum of all processors is none");
        assert_eq!(idle_us(stat, &[]) + idle_us("", &[0]) + idle_us("cpu0 1\ncpuX 1 2 3 4 5", &[0]), 0);
    }

    #[test]
    fn pressure_is_the_sum_of_the_first_line() {
        let text = "some avg10=1.00 avg60=2.00 avg300=0.10 total=4711\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n";
        assert_eq!(waited_us(text), Some(4711));
        assert_eq!((waited_us(""), waited_us("some total=x")), (None, None));
    }

    #[test]
    fn a_quota_is_rounded_up_to_processors() {
        for (text, processors) in [
            ("max 100000\n", None),
            ("150000 100000\n", Some(2)),
            ("50000 100000", Some(1)),
            ("1 0", None),
            ("", None),
        ] {
            assert_eq!(quota(text), processors, "{text:?}");
        }
        assert_eq!(quota("-1 100000"), None, "version 1 without a quota");
    }

    /// The folders, in order.
    fn folders(own: &str, mounts: &str) -> Vec<String> {
        quota_places(own, mounts).into_iter().map(|place| place.folder).collect()
    }

    #[test]
    fn quotas_are_those_of_the_own_cgroup_and_of_all_above_it() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let all = folders("9:name=systemd:/\n0::/system.slice/towpath.service\n", mounts);
        let top = "/sys/fs/cgroup";
        assert_eq!(
            all,
            [format!("{top}/system.slice/towpath.service"), format!("{top}/system.slice"), top.to_owned()]
        );
        assert_eq!(folders("0::/../other\n", mounts)[0], format!("{top}/other"));
        assert!(folders("0::/", "").is_empty() && folders("", "1 2 - x").is_empty());
    }

    #[test]
    fn quotas_of_version_1_are_found_where_its_processor_controller_is_mounted() {
        let mounts = "\
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
";
        let own = "5:cpuset:/\n4:cpu,cpuacct:/a:b/c\n1:name=systemd:/d\n0::/d\n";
        assert_eq!(
            folders(own, mounts),
            ["unified/d", "unified", "cpu,cpuacct/a:b/c", "cpu,cpuacct/a:b", "cpu,cpuacct"]
                .map(|inner| format!("/sys/fs/cgroup/{inner}"))
        );
        // In a container the mount's root is the container's cgroup.
        let inside = "40 39 0:29 /docker/1f /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n";
        let own = "4:cpuacct,cpu:/docker/1f\n";
        assert_eq!(
            quota_places(own, inside),
            [Place { folder: "/sys/fs/cgroup/cpu".into(), is_unified: false }]
        );
    }

    #[test]
    fn a_quota_of_version_1_counts() {
        let folder = std::env::temp_dir().join(format!("towpath-quota-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("cpu.cfs_quota_us"), "250000\n").unwrap();
        std::fs::write(folder.join("cpu.cfs_period_us"), "100000\n").unwrap();
        let place = Place { folder: folder.to_str().unwrap().to_owned(), is_unified: false };
        assert_eq!(Quota::open(&place).and_then(|quota| quota.processors()), Some(3));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_count_that_was_not_read_for_long_says_nothing() {
        let at = |ms: u64| Instant::from_ns(ms * 1_000_000);
        let mut last = None;
        assert_eq!(passed(&mut last, at(1_000), Some(5)), None);
        assert_eq!(passed(&mut last, at(1_100), Some(25)), Some((20, Duration::from_ms(100))));
        assert_eq!(passed(&mut last, at(9_000), Some(99)), None);
        assert_eq!(passed(&mut last, at(9_100), None), None);
        assert_eq!(passed(&mut last, at(9_200), Some(100)), None);
    }

    #[test]
    fn this_machine_has_a_processor_for_us() {
        assert!((1..=usize::from(u8::MAX)).contains(&usize::from(Machine::open().allowed())));
    }
}
