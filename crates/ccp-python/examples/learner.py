# A learner in 20 lines: which window, in multiples of the path's own bytes, carries most with least waiting?  python3 learner.py
import random

import towpath_cc

BDP = 12_000_000 * 0.020 / 8  # bytes of 12 Mbit/s in 20 ms

def episode(env, share):
    """The reward of a flow that keeps this window for the whole episode: its rate, less what it lets the queue grow."""
    seen, reward = env.reset(seed=1), 0.0
    while not seen["is_over"]:
        seen = env.step(cwnd=max(int(share * BDP), 2 * 1448))
        reward += seen["acked"] / BDP - seen["queue"] / 10 - seen["lost"]
    return reward

def learn(env, rounds, rng):
    best = (episode(env, 0.5), 0.5)
    for _ in range(rounds):
        share = best[1] * rng.uniform(0.6, 1.6)
        best = max(best, (episode(env, share), share))
    return best[1]

if __name__ == "__main__":
    env = towpath_cc.Env(link="12mbit,20ms,2bdp", seconds=2, interval_us=20_000)
    print(f"window: {learn(env, 20, random.Random(1)):.2f} times the bytes that the path holds")
