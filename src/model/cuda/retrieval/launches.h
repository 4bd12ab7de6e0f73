// Which launches a step needs, and their order: functions of the plans of its rows, evaluated where they are made.
#pragma once

#include <span>

#include "src/model/cuda/retrieval/retrieval_state.h"

namespace mneme {

// Whether select() lists for this step what recall() would.
bool lists_as_selected(const RetrievalState& s);
// Whether select() for the next step reuses the scores of the one for this step.
bool shares_scores(const RetrievalState& s);
// Whether a selection for the next step must start after the one for this step has ended.
bool selects_in_sequence(const RetrievalState& s);
// Whether close_groups() must run before select().
bool closes_first(const RetrievalState& s);
// Whether recall() lists a step's units.
bool recalls(const RetrievalState& s);
// Whether hits are attended while recall() fetches the misses: attention with SlotRows::tickets is launched right after
// it. Where most heads attend the speculative selection it costs more than it gains (freekv at 128K: 5.21 ms a step in
// place of 5.14 without corrections, equal with 20 %).
bool merges(const RetrievalState& s);
// Whether the lists of the step before are attended while select() runs for this step, and then again those of flagged
// heads, which recall() has written (CacheSlots::relisted). With a gate by mass, where all heads select before one is
// flagged: `mneme` at 128K takes 5.8 ms a step in place of 6.1 without corrections (H200), as long as before with 20 %.
// With a gate by cosines, whose selection few layers wait for, nothing is gained: 4.88 and 5.74 ms in place of 4.86 and
// 5.69.
bool attends_early(const RetrievalState& s);

// CudaRetrievalNeeds::Keys::fused_entries of each kind; pages by boxes as long as one thread block ranks them.
bool scans_sketches(const RetrievalState& s);
bool selects_sketch_pages(const RetrievalState& s);
bool selects_small_pages(const RetrievalState& s);

}  // namespace mneme
