//! Which groups of flows move when the number of cores changes. Knows no port and no flow: tables in, moves out.

use flow::GroupSet;
use port::Table;
use wire::GROUPS;

/// Most groups that move at once: a quarter of all.
const MOVE_MOST: usize = GROUPS / 4;
/// Cores are even enough when they differ by less than this part of the whole load.
const EVEN: u64 = 16;
/// What a segment weighs beside a group without load: groups that do nothing now are spread as well.
const SEGMENT: u64 = 64;

/// Groups that move together from one core to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The groups that move together.
    pub groups: GroupSet,
    /// The core that has them.
    pub from: u8,
    /// The core that gets them.
    pub to: u8,
}

/// The moves after which `serving` cores have all groups, evenly by `loads`, the segments of each group lately. `table` says which core has each
/// group now. Few groups move: those of cores that are to serve no longer, and as many as it takes to be even.
pub fn plan(table: &Table, loads: &[u64; GROUPS], serving: u8) -> Vec<Step> {
    let serving = serving.max(1);
    let weight = |group: usize| loads[group].saturating_mul(SEGMENT).saturating_add(1);
    let mut wanted = *table;
    let mut cores: Vec<u64> = vec![0; usize::from(serving)];
    let mut leaving: Vec<usize> = Vec::new();
    for (group, core) in table.iter().enumerate() {
        match cores.get_mut(usize::from(*core)) {
            Some(load) => *load = load.saturating_add(weight(group)),
            None => leaving.push(group),
        }
    }
    leaving.sort_by_key(|group| std::cmp::Reverse(weight(*group)));
    for group in leaving {
        let (_, least) = ends(&cores);
        cores[least] = cores[least].saturating_add(weight(group));
        wanted[group] = least as u8;
    }
    even_out(&mut wanted, &mut cores, weight);
    steps(table, &wanted)
}

/// The cores with the most and the least load.
fn ends(cores: &[u64]) -> (usize, usize) {
    let of = |order: fn(&u64, &u64) -> bool| {
        (1..cores.len()).fold(0, |best, core| if order(&cores[core], &cores[best]) { core } else { best })
    };
    (of(|a, b| a > b), of(|a, b| a < b))
}

/// Gives the least loaded core groups of the most loaded one, the heaviest that fit first, until they are even.
fn even_out(wanted: &mut Table, cores: &mut [u64], weight: impl Fn(usize) -> u64) {
    let total: u64 = cores.iter().fold(0, |sum, load| sum.saturating_add(*load));
    for _ in 0..GROUPS {
        let (most, least) = ends(cores);
        let gap = cores[most] - cores[least];
        if gap <= total / EVEN {
            return;
        }
        let of_most =
            (0..GROUPS).filter(|group| usize::from(wanted[*group]) == most && weight(*group) <= gap / 2);
        let Some(group) = of_most.max_by_key(|group| weight(*group)) else { return };
        wanted[group] = least as u8;
        cores[most] -= weight(group);
        cores[least] += weight(group);
    }
}

/// The difference of two tables as moves.
fn steps(table: &Table, wanted: &Table) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for group in 0..=u8::MAX {
        let (from, to) = (table[usize::from(group)], wanted[usize::from(group)]);
        if from == to {
            continue;
        }
        let open = steps
            .iter_mut()
            .find(|step| (step.from, step.to) == (from, to) && step.groups.iter().count() < MOVE_MOST);
        match open {
            Some(step) => step.groups.insert(group),
            None => steps.push(Step { groups: GroupSet::of(group), from, to }),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Seed;

    fn after(table: &Table, steps: &[Step]) -> Table {
        let mut table = *table;
        for step in steps {
            assert!((1..=MOVE_MOST).contains(&step.groups.iter().count()) && step.from != step.to);
            for group in step.groups.iter() {
                assert_eq!(table[usize::from(group)], step.from);
                table[usize::from(group)] = step.to;
            }
        }
        table
    }

    fn counts(table: &Table, cores: u8) -> Vec<usize> {
        (0..cores).map(|core| table.iter().filter(|c| **c == core).count()).collect()
    }

    #[test]
    fn groups_without_load_are_spread_by_number() {
        let mut table = [0; GROUPS];
        for serving in [2, 3, 1, 14, 5, 5] {
            let steps = plan(&table, &[0; GROUPS], serving);
            table = after(&table, &steps);
            let counts = counts(&table, serving);
            assert_eq!(counts.iter().sum::<usize>(), GROUPS, "all are at serving cores");
            let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
            assert!(most - least <= GROUPS / EVEN as usize, "{counts:?}");
        }
        assert_eq!(plan(&table, &[0; GROUPS], 5), [], "what is even stays");
    }

    #[test]
    fn the_load_decides_not_the_number_of_groups() {
        // Core 0 has everything; two groups have nearly all the load.
        let mut loads = [1; GROUPS];
        (loads[3], loads[4]) = (10_000, 9_000);
        let table = after(&[0; GROUPS], &plan(&[0; GROUPS], &loads, 2));
        assert_ne!(table[3], table[4]);
        // One group with everything cannot be divided: it stays, and the others make room.
        let mut loads = [0; GROUPS];
        loads[7] = 1_000_000;
        let table = after(&[0; GROUPS], &plan(&[0; GROUPS], &loads, 2));
        assert_eq!((table[7], counts(&table, 2)[1]), (0, GROUPS - 1));
    }

    /// The flooded group stays where it is, however often groups are planned; a group that shared its core goes once.
    #[test]
    fn a_flooded_group_does_not_go_to_and_fro() {
        let mut rng = Seed::new(6);
        for serving in [2, 3, 2, 4] {
            let mut loads: [u64; GROUPS] = std::array::from_fn(|_| rng.below(100));
            loads[7] = 1_000_000;
            let table = after(&[0; GROUPS], &plan(&[0; GROUPS], &loads, serving));
            assert!((0..GROUPS).all(|group| group == 7 || table[group] != table[7]), "the others make room");
            let later: [u64; GROUPS] = std::array::from_fn(|group| loads[group] + rng.below(10));
            let again = after(&table, &plan(&table, &later, serving));
            assert_eq!(again[7], table[7]);
            assert!((0..GROUPS).all(|group| group == 7 || again[group] != again[7]), "and do not come back");
        }
    }

    #[test]
    fn any_table_and_load_ends_with_serving_cores_only() {
        let mut rng = Seed::new(5);
        for _ in 0..500 {
            let cores = 1 + rng.below(14);
            let serving = 1 + rng.below(14) as u8;
            let table: Table = std::array::from_fn(|_| rng.below(cores) as u8);
            let loads: [u64; GROUPS] = std::array::from_fn(|_| rng.next_u64() >> rng.below(64));
            let table = after(&table, &plan(&table, &loads, serving));
            assert!(table.iter().all(|core| *core < serving));
        }
    }
}
