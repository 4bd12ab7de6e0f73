// Normaliser, pre-tokenizer and post-processor of a tokenizer.json.
#pragma once

#include "src/formats/json.h"
#include "src/formats/tokenizer_data.h"

namespace mneme {

// Determines the kind and how text is split: sets kind, pre_patterns, pre_add_prefix_space, add_space_prefix.
//
// Errors  kUnsupported: anything that these fields cannot express (named)
void read_pre_tokenizer(const JsonRef& root, bool byte_fallback, TokenizerData& t);

// Determines the tokens added around a text: sets bos, add_bos, eos, add_eos. Requires  the vocabulary has been read.
//
// Errors  kUnsupported: more than one token on either side, other kinds (named)
void read_post_processor(const JsonRef& root, TokenizerData& t);

}  // namespace mneme
