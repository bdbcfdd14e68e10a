//! Application regions: added to every core, and removed from all cores before they are unmapped.

use crate::timeouts::Timer;
use crate::{Event, SlowPath};
use base::{Duration, Instant};
use flow::{AppRegion, Command, FlowId};
use shm::half_flags;
use std::sync::Arc;

/// Time until a core that has not let go of a region is asked again.
const ASK_BACK: Duration = Duration::from_ms(100);

#[derive(Debug, Default)]
struct Place {
    region: Option<Arc<AppRegion>>,
    is_leaving: bool,
    /// Number of cores that have not let go of the region yet; 0 until they were asked.
    cores_left: usize,
}

/// All regions, by index.
#[derive(Debug)]
pub(crate) struct Regions {
    places: Vec<Place>,
}

impl Regions {
    pub(crate) fn new(count: usize) -> Self {
        Self { places: (0..count).map(|_| Place::default()).collect() }
    }
}

impl SlowPath {
    /// Lets all cores serve `region` under `index`. False when the index is taken or too large.
    pub fn add_region(&mut self, index: u16, region: &Arc<AppRegion>) -> bool {
        let Some(place) = self.regions.places.get_mut(usize::from(index)) else { return false };
        if place.region.is_some() {
            return false;
        }
        *place = Place { region: Some(region.clone()), is_leaving: false, cores_left: 0 };
        for core in 0..self.output.cores() {
            self.output.command(core as u8, Command::add_region(index, region.clone()));
        }
        true
    }

    /// Resets all flows of a region and removes it from all cores; [`Event::RegionDrained`] tells when that is done. To let an
    /// application's data still arrive, call this when the region has no flow left: see
    /// [`region_flows`](Self::region_flows).
    pub fn remove_region(&mut self, now: Instant, index: u16) {
        self.now = now;
        let Some(place) = self.regions.places.get_mut(usize::from(index)) else { return };
        if place.region.is_none() || place.is_leaving {
            return;
        }
        place.is_leaving = true;
        let openings = self.openings.iter().filter(|(_, o)| o.owner.region == index);
        let openings: Vec<u64> = openings.map(|(&id, _)| id).collect();
        openings.into_iter().for_each(|id| {
            self.take_opening(id);
        });
        let flows = self.connections.iter().filter(|(_, c)| c.owner.region == index);
        let flows: Vec<(FlowId, u32)> = flows.map(|(flow, c)| (flow, c.owner.slot)).collect();
        for (flow, slot) in flows {
            self.make_orphan(flow);
            self.abort(now, flow);
            self.release_by_service(index, slot);
            self.release_slot(index, slot);
        }
        self.remove_region_if_idle(now, index);
    }

    /// Number of flows of a region that their cores have not let go of yet.
    #[must_use]
    pub fn region_flows(&self, index: u16) -> usize {
        self.connections.iter().filter(|(_, c)| c.owner.region == index).count()
    }

    pub(crate) fn region(&self, index: u16) -> Option<Arc<AppRegion>> {
        self.regions.places.get(usize::from(index))?.region.clone()
    }

    pub(crate) fn remove_region_if_idle(&mut self, now: Instant, index: u16) {
        self.now = now;
        let is_leaving = self.regions.places.get(usize::from(index)).is_some_and(|place| place.is_leaving);
        if !is_leaving || self.region_flows(index) > 0 {
            return;
        }
        let cores = self.output.cores();
        if let Some(place) = self.regions.places.get_mut(usize::from(index)).filter(|p| p.cores_left == 0) {
            place.cores_left = cores;
            self.ask_back(now, index);
        }
    }

    fn ask_back(&mut self, now: Instant, index: u16) {
        (0..self.output.cores()).for_each(|core| {
            self.output.command(core as u8, Command::RemoveRegion { index });
        });
        self.wheel.set(now.plus(ASK_BACK), Timer::Region(index));
    }

    /// Asks the cores again: a core keeps the region if its exception ring had no room for the answer.
    pub(crate) fn on_region_timer(&mut self, now: Instant, index: u16) {
        let place = self.regions.places.get(usize::from(index));
        if place.is_some_and(|place| place.is_leaving && place.cores_left > 0) {
            self.ask_back(now, index);
        }
    }

    /// Raises RELEASED in the application's half, so that the core does not wait for the application.
    fn release_by_service(&self, index: u16, slot: u32) {
        let Some(region) = self.region(index) else { return };
        if let Some((_, peer)) = region.halves(slot) {
            queue::stream::raise(peer, half_flags::RELEASED | half_flags::READ_CLOSED);
        }
    }

    pub(crate) fn on_drained(&mut self, index: u16, region: &Arc<AppRegion>) {
        let Some(place) = self.regions.places.get_mut(usize::from(index)) else { return };
        place.cores_left = place.cores_left.saturating_sub(1);
        if place.is_leaving && place.cores_left == 0 {
            *place = Place::default();
            self.events.push_back(Event::RegionDrained { index, region: region.clone() });
        }
    }
}
