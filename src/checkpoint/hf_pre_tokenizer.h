// The parts of a tokenizer.json around its vocabulary: normaliser, pre-tokenizer, post-processor.
#pragma once

#include "src/checkpoint/json.h"
#include "src/checkpoint/tokenizer_data.h"

namespace mneme {

// Finds out the kind and how text is split: sets kind, pre_patterns, pre_add_prefix_space, add_space_prefix.
//
// Errors  kUnsupported: what cannot be said with these (named)
void read_pre_tokenizer(const JsonRef& root, bool byte_fallback, TokenizerData& t);

// Which tokens are put around a text: sets bos, add_bos, eos, add_eos. Requires  the vocabulary has been read.
//
// Errors  kUnsupported: more than one token before or behind, other kinds (named)
void read_post_processor(const JsonRef& root, TokenizerData& t);

}  // namespace mneme
