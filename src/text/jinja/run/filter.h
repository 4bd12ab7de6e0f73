// Filters of sequences; src/tokenizer/jinja_filter.cc has the others, and the table that apply_filter() looks into.
#pragma once

#include "src/tokenizer/jinja_call.h"

namespace mneme::jinja {

Value filter_dictsort(Run& run, const Value& v, const Arguments& a);
Value filter_first(Run& run, const Value& v, const Arguments& a);
Value filter_items(Run& run, const Value& v, const Arguments& a);
Value filter_join(Run& run, const Value& v, const Arguments& a);
Value filter_last(Run& run, const Value& v, const Arguments& a);
Value filter_length(Run& run, const Value& v, const Arguments& a);
Value filter_list(Run& run, const Value& v, const Arguments& a);
Value filter_map(Run& run, const Value& v, const Arguments& a);
Value filter_max(Run& run, const Value& v, const Arguments& a);
Value filter_min(Run& run, const Value& v, const Arguments& a);
Value filter_reverse(Run& run, const Value& v, const Arguments& a);
// select, reject and the same by an attribute: keeps elements that are, or are not, what a test asks.
Value filter_select(Run& run, const Value& v, const Arguments& a, bool by_attribute, bool keep);
Value filter_sort(Run& run, const Value& v, const Arguments& a);
Value filter_string(Run& run, const Value& v, const Arguments& a);
Value filter_sum(Run& run, const Value& v, const Arguments& a);
Value filter_unique(Run& run, const Value& v, const Arguments& a);

}  // namespace mneme::jinja
