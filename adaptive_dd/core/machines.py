"""Worlds and workloads fitted to public measurements.

`m295` names the row of that number in `data/measurements.csv`, `c5` the row in `data/cost_curves.csv`. Parameters are
least-squares fits of the simulator's own model to the named rows (rms of the logarithm of tok/s in brackets); what a
row does not tell (context decay, how sure a drafter is) is taken over from rows that do, and said. `tests/core/
test_scenarios.py` holds the worlds to their rows.
"""

from __future__ import annotations

from dataclasses import replace

from adaptive_dd.core.cycles import Content
from adaptive_dd.core.domain import Kind, Setting
from adaptive_dd.core.sim import Points, World, linear_shape
from adaptive_dd.core.traffic import Workload

GREEDY = Kind("greedy")
SAMPLED = Kind("sampled")
TOOLS = Kind("greedy", "tools")
SCHEMA = Kind("sampled", "schema")
COMPLETION = Kind("greedy", "free", "completion")

# How decoding slows with context, relative to a short prompt: m113, m140, m142, m144, m146, m148.
DECAY = ((0, 1.0), (4075, 1.024), (16255, 1.074), (32467, 1.146), (64891, 1.291), (129781, 1.565))


def decaying(short_ms: float) -> Points:
    """ms per token without drafting by context, for a machine of which only short prompts are known."""
    return tuple((float(tokens), short_ms * factor) for tokens, factor in DECAY)


def text(
    easy: float, hard_share: float, *, sureness: float = 0.0, boast: float = 1.0, hard: float = 0.45
) -> Content:
    """Content as the fits describe it.

    Without a fitted sureness the drafter's confidence says little, so that p_min mostly shortens drafts and costs a
    little, as in most measurements (m307, m308, m331, m376 against m295-m304, m329, m372).
    """
    if sureness == 0.0:
        return Content(easy, hard, hard_share, sureness=40.0, insight=0.1)
    return Content(easy, hard, hard_share, sureness=sureness, boast=boast)


# What of its kind a workload shows: code mostly decodes greedily, shell work comes with tools, prose is sampled.
# Some conversations disguise themselves, as people do not set temperature by subject.
PYTHON = Workload("python", text(0.90, 0.2), GREEDY, 0.4, disguise=SAMPLED, disguised=0.12)
BASH = Workload("bash", text(0.77, 0.2), TOOLS, 0.25, answer_tokens=180, disguise=GREEDY, disguised=0.2)
PROSE = Workload("prose", text(0.55, 0.2), SAMPLED, 0.35, answer_tokens=350, disguise=GREEDY, disguised=0.08)


def three(
    python: Content, bash: Content, prose: Content, *, context: tuple[float, float] = (200.0, 4000.0)
) -> tuple[Workload, ...]:
    """The mix that the public probe measures (Python, shell, prose), as users would send it."""
    return (
        replace(PYTHON, content=python, context=context),
        replace(BASH, content=bash, context=context),
        replace(PROSE, content=prose, context=context),
    )


# --- V100, Qwen 27B Q4_K_M: m295-m306 (.017). A steep verify: depth 2 is best for all it was measured on.
V100 = World(decaying(29.78), linear_shape(0.872, 0.378, cliffs={6: 0.30}), draft_step=0.1)
V100_CODE, V100_PROSE = text(0.840, 0.287), text(0.791, 0.170)

# --- RTX PRO 6000 Max-Q, Qwen 27B Q8_0: m219-m294 (.038), p_min swept.
PRO6000 = World(decaying(21.81), linear_shape(0.941, 0.065))
PRO6000_MIX = three(
    text(0.851, 0.152, sureness=1.69, boast=2.13),
    text(0.783, 0.350, sureness=1.69, boast=2.13),
    text(0.473, 0.194, sureness=1.69, boast=2.13),
)

# --- two R9700, Qwen 27B Q8_0: m427-m447 (.014). Code is best at 8 to 10, reasoning at 3 to 5.
R9700_PAIR = World(decaying(29.90), linear_shape(1.0, 0.061, cliffs={8: 0.024}))
R9700_CODE, R9700_PROSE, R9700_REASONING = text(0.854, 0.225), text(0.773, 0.214), text(0.581, 0.191)

# --- two RTX 5060 Ti, tensor split, Qwen 27B UD-Q4_K_XL: m113-m131 (.017). A cliff at 6, a way out of it at 8.
TI5060_PAIR = World(decaying(26.95), linear_shape(0.981, 0.147, cliffs={6: 0.362, 8: -0.272}), draft_step=0.1)
TI5060_MIX = three(text(0.903, 0.257), text(0.768, 0.139), text(0.554, 0.206))

# --- Apple M3 Ultra, Qwen 27B Q6_K: m368-m375, m380-m387 (.023). Every verified row costs most of a pass.
M3_ULTRA = World(decaying(43.76), linear_shape(0.683, 0.670, cliffs={3: 0.147}))
M3_MIX = three(text(0.889, 0.295), text(0.764, 0.249), text(0.471, 0.198))

# --- RTX 3060 laptop with experts on the CPU, Qwen 35B-A3B: m526-m538 (.009).
HYBRID = World(decaying(43.63), linear_shape(1.01, 0.414))
HYBRID_TEXTS = {
    "python": text(0.901, 0.200),
    "cpp": text(0.718, 0.209),
    "creative": text(0.660, 0.208),
    "qa": text(0.865, 0.206),
    "translation": text(0.618, 0.207),
}

# --- RTX 3090 overclocked, Qwen 27B UD-Q4_K_XL: m28-m47 (.020).
RTX3090 = World(decaying(22.62), linear_shape(0.868, 0.208, cliffs={3: 0.096}))
RTX3090_MIX = three(text(0.943, 0.226), text(0.754, 0.189), text(0.549, 0.201))

# --- RTX A6000 Ada, Qwen 27B Q8_K_XL: m198-m218 (.027).
A6000 = World(decaying(37.45), linear_shape(0.942, 0.099))
A6000_MIX = three(text(0.964, 0.313), text(0.774, 0.084), text(0.570, 0.195))

# --- three RTX 3090, Qwen 27B UD-Q6_K_XL: m76-m96 (.027).
RTX3090_TRIO = World(decaying(20.37), linear_shape(1.059, 0.143, cliffs={5: 0.156}))
TRIO_MIX = three(text(0.903, 0.109), text(0.868, 0.313), text(0.594, 0.173))

# --- RTX 3080 10 GB, Qwen 27B UD-IQ2_XXS: m8-m11 (.015), context decay m20-m26; spilled: m16, m19.
RTX3080 = World(
    ((417, 22.1), (1641, 22.3), (6538, 23.4), (19599, 25.6), (60000, 32.0)),
    linear_shape(0.848, 0.223),
)
RTX3080_MIX = three(text(0.78, 0.2), text(0.60, 0.194), text(0.52, 0.2), context=(200.0, 9000.0))

# --- Step 3.x Flash (MoE) on a DGX Spark: m521-m525 (.018).
STEP_FLASH = World(decaying(37.45), linear_shape(0.728, 0.381))
STEP_TEXT = text(0.430, 0.2, sureness=4.8, boast=3.2, hard=0.41)

# --- two Tesla P40, Qwen 27B UD-Q5_K_XL: m156-m160 (.010).
P40_PAIR = World(decaying(85.47), linear_shape(0.884, 0.169), launch=Setting(6, 0.75, 0))
P40_TEXT = text(0.765, 0.183, sureness=36.0, boast=2.84)

# --- Strix Halo, Vulkan, Qwen 27B: c8 (the cliff past 8 rows), texts from m512-m515 (.004).
STRIX = World(decaying(84.0), linear_shape(1.03, 0.112, cliffs={9: 1.3}), launch=Setting(12, 0.0, 0))
STRIX_CODE, STRIX_PROSE = text(0.920, 0.138), text(0.878, 0.369)

# --- Strix Halo, dense 27B of the research note's lab: m400-m402 (.003). p_min decides between gain and loss.
DENSE_STRIX = World(decaying(71.43), linear_shape(0.685, 0.467), launch=Setting(6, 0.0, 0))
DENSE_TEXT = text(0.871, 0.588, sureness=1.3, boast=1.19, hard=0.3)

# --- one R9700, Qwen 35B-A3B with that author's kernels: m493, m494; the broken build is m496.
MOE_R9700 = World(decaying(11.17), linear_shape(0.95, 0.283), launch=Setting(3, 0.0, 0))
MOE_TEXT = text(0.748, 0.2)

# --- one R9700, Qwen 27B UD-Q4_K_XL: m467-m474 (fitted at depth 3; deeper is an extrapolation of its line).
R9700 = World(decaying(34.6), linear_shape(1.0, 0.235), launch=Setting(3, 0.0, 0))
R9700_MIX_TEXTS = {
    "reasoning": text(0.837, 0.2, hard=0.32),
    "prose": text(0.944, 0.2, hard=0.60),
    "code": text(0.981, 0.2, hard=0.83),
}

# --- RTX 5090, Qwen 27B UD-Q4_K_XL: c1 at 600 W and c5 at 400 W (the power cap acts on the slope only).
RTX5090 = World(decaying(13.37), linear_shape(1.02, 0.168))

# --- Radeon 780M, Qwen 27B: c12, m584-m586 (speed-up at 100, 34,000 and 86,000 tokens; acceptance falls with context).
RADEON780M = World(
    decaying(244.0),
    linear_shape(0.4, 0.35),
    launch=Setting(4, 0.0, 0),
    context_slope=0.20,
    context_skill=((100.0, 0.0), (34000.0, -1.65), (86000.0, -1.95), (200000.0, -2.3)),
)
RADEON_TEXT = text(0.94, 0.0)

# --- the research note's own table (n1-n5): Qwen 35B ROCmFP4 MTP; base_ms solved from its n2,p0.0 column.
NOTE = World(
    ((3946.0, 15.86), (65536.0, 25.60), (131072.0, 26.28), (200704.0, 28.77), (262144.0, 42.84)),
    linear_shape(1.0, 0.14, cliffs={5: 0.4}),
    launch=Setting(2, 0.0, 0),
    context_skill=((65536.0, 0.0), (131072.0, -1.5), (262144.0, -1.5)),
)
NOTE_TEXT = text(0.88, 0.2, sureness=60.0)

# --- Gemma-3-270M F32 with a Q2_K draft on 2 cores (g1-g18): a rejection makes a sliding window compute again.
GEMMA = World(
    decaying(62.5),
    linear_shape(1.376, 0.0),
    launch=Setting(16, 0.0, 0),
    draft_step=0.34,
    rewind=0.374,
)
GEMMA_GREEDY = text(0.985, 0.0, sureness=4.0, boast=1.83)
GEMMA_CODE = text(0.764, 0.305, sureness=4.0, boast=1.83, hard=0.3)
GEMMA_STORY = text(0.463, 0.0, sureness=4.0, boast=1.83, hard=0.3)
