//! An algorithm as its author would have written it for Portus 0.8. Only the first `use` is ours.

use std::collections::HashMap;

use ccp_agent::portus;
use portus::ipc::Ipc;
use portus::lang::Scope;
use portus::{CongAlg, Datapath, DatapathInfo, DatapathTrait, Flow, Report};

use crate::bench::{Bench, window};

#[derive(Clone, Default)]
struct Aimd;

struct AimdFlow<T: Ipc> {
    control: Datapath<T>,
    scope: Scope,
    cwnd: u32,
    mss: u32,
}

impl<T: Ipc> CongAlg<T> for Aimd {
    type Flow = AimdFlow<T>;

    fn name() -> &'static str {
        "aimd"
    }

    fn datapath_programs(&self) -> HashMap<&'static str, String> {
        let text = "
            (def (Report (volatile acked 0) (volatile lost 0)))
            (when true
                (:= Report.acked (+ Report.acked Ack.bytes_acked))
                (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
                (fallthrough)
            )
            (when (> Micros 10000)
                (report)
                (:= Micros 0)
            )";
        HashMap::from([("aimd", text.to_owned())])
    }

    fn new_flow(&self, mut control: Datapath<T>, info: DatapathInfo) -> Self::Flow {
        let scope = control.set_program("aimd", Some(&[("Cwnd", info.init_cwnd)])).expect("program");
        AimdFlow { control, scope, cwnd: info.init_cwnd, mss: info.mss }
    }
}

impl<T: Ipc> Flow for AimdFlow<T> {
    fn on_report(&mut self, _sock_id: u32, m: Report) {
        let acked = m.get_field("Report.acked", &self.scope).expect("acked") as u32;
        let lost = m.get_field("Report.lost", &self.scope).expect("lost") as u32;
        if lost > 0 {
            self.cwnd /= 2;
        } else {
            self.cwnd += self.mss * acked / self.cwnd;
        }
        self.control.update_field(&self.scope, &[("Cwnd", self.cwnd)]).expect("update");
    }
}

#[test]
fn an_algorithm_of_portus_needs_another_import_only() {
    let mut bench = Bench::with(portus::Ported(Aimd));
    bench.open(1, "aimd");
    assert_eq!(bench.commands().iter().filter_map(window).collect::<Vec<_>>(), [(1, 14_480)]);
    bench.report(1, 2, &[14_480, 0]);
    bench.report(1, 2, &[100, 3]);
    let windows: Vec<(u64, u64)> = bench.commands().iter().filter_map(window).collect();
    assert_eq!(windows, [(1, 15_928), (1, 7964)]);
}
