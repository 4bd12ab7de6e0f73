// What RULER's generator reads beside its code, from the files that it reads. Untrusted.
#pragma once

#include <filesystem>
#include <memory>

#include "apps/eval/generated/ruler.h"

namespace mneme::eval {

// Finds, of a folder's PaulGrahamEssays.json, nounlist.txt, adjectivelist.txt, verblist.txt, english_words.json,
// squad.json (or dev-v2.0.json) and hotpotqa.json (or hotpot_dev_distractor_v1.json) those that are there, two levels
// deep. Null: none.
//
// Errors  kFormat: the file, the field, what was expected and found.
std::shared_ptr<const RulerSources> read_ruler_sources(const std::filesystem::path& folder);

}  // namespace mneme::eval
