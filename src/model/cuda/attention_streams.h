// Streams beside a step's own and events between them: the graph of a layer, as attention_rows.cc draws it.
#pragma once

#include <cstdint>

#include "src/cuda/stream.h"

namespace mneme {

// Later work in `then` waits for the work in `first` so far.
inline void follow(const Stream& then, Event& had, const Stream& first) {
  had.record(first);
  then.wait(had);
}

struct AttentionStreams {
  Stream side, fetch, early;
  Event stored, selected, attended, attended_early, made, side_done, fetched;
  Event scores_free[2];  // by CudaRetrieval::next_scores()
  bool scores_read[2] = {};
  bool side_busy = false;  // work is in flight in `side`
  bool fetching = false;   // in `fetch`

  void make() {
    for (Stream* s : {&side, &fetch}) *s = Stream::make(Stream::Priority::kHigh);
    early = Stream::make();
    for (Event* e : {&stored, &selected, &attended, &attended_early, &made, &side_done, &fetched, &scores_free[0],
                     &scores_free[1]})
      *e = Event::make();
  }
  // Later work in `stream` sees what is in flight.
  void join(const Stream& stream) {
    side_busy = false;
    scores_read[0] = scores_read[1] = false;
    follow(stream, side_done, side);
    if (!fetching) return;
    fetching = false;
    follow(stream, fetched, fetch);
  }
};

}  // namespace mneme
