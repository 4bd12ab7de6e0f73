#include "src/model/cuda/retrieval/launches.h"

namespace mneme {
namespace {

bool caches_pages(const RetrievalState& s) {
  return s.device_cache().n_slots > 0 && s.device_cache().unit_tokens == kPageTokens;
}

bool fuses(const RetrievalState& s, EntryKind kind) {
  return s.needs().keys.fused_entries && s.needs().keys.entries.kind == kind;
}

}  // namespace

bool lists_as_selected(const RetrievalState& s) {
  return s.in_pages() && s.any(asks::selects) && (s.groups() || scans_sketches(s));
}

bool shares_scores(const RetrievalState& s) {
  return s.any(asks::speculates) && s.groups() && !s.in_pages();
}

bool selects_in_sequence(const RetrievalState& s) {
  return s.any(asks::gates_by_mass) || shares_scores(s);
}

bool closes_first(const RetrievalState& s) {
  return selects_newest(s.needs().plans, s.needs().keys.entries);
}

bool recalls(const RetrievalState& s) {
  return !(s.in_pages() && s.by_layer());
}

bool merges(const RetrievalState& s) {
  return s.any(asks::selects) && !s.any(asks::speculates) && !s.two_parts() && !s.any(asks::prunes) && caches_pages(s);
}

bool attends_early(const RetrievalState& s) {
  return s.any(asks::gates_by_mass) && !s.two_parts() && !s.any(asks::prunes) && caches_pages(s);
}

bool scans_sketches(const RetrievalState& s) {
  return fuses(s, EntryKind::kSketch) && s.needs().keys.by_token && s.needs().keys.select_tokens == 1;
}
bool selects_sketch_pages(const RetrievalState& s) {
  return fuses(s, EntryKind::kSketch) && !scans_sketches(s);
}
bool selects_small_pages(const RetrievalState& s) {
  return fuses(s, EntryKind::kMinMaxBox) && select_pages_takes(s.device_cache(), true);
}

}  // namespace mneme
