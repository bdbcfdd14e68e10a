# The AIMD of the CCP paper, section 4.2:  towpath cc try aimd.py --against cubic --open
import towpath_cc

class Aimd(towpath_cc.Algorithm):
    programs = {"round": """
        (def (Report (volatile acked 0) (volatile lost 0)))
        (when true
            (:= Report.acked (+ Report.acked Ack.bytes_acked))
            (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
            (fallthrough))
        (when (|| (> Micros Flow.rtt_sample_us) (> Ack.lost_pkts_sample 0)) (report) (reset))"""}
    def new_flow(self, datapath, info):
        datapath.set_program("round")
        return Flow(datapath, info.cwnd, info.mss)

class Flow:
    def __init__(self, datapath, cwnd, mss):
        self.datapath, self.cwnd, self.mss = datapath, cwnd, mss
    def on_report(self, report):
        grown = self.cwnd + self.mss * report.acked / self.cwnd
        self.cwnd = max(self.cwnd / 2, 2 * self.mss) if report.lost else grown
        self.datapath.update(Cwnd=self.cwnd)
