"""acceptance.py <METRICS.json: prints one line about /v1/spec_decode/metrics of the gateway."""
import json
import sys


def main():
    m = json.load(sys.stdin)
    print("acceptance: %d of %d draft tokens accepted (alpha %.2f), %d rounds, %.2f tokens per round (tau)" % (
        m["total_accepted"], m["total_proposed"], m["acceptance_rate_overall"], m["total_steps"], m["avg_tokens_per_step"]))


main()
