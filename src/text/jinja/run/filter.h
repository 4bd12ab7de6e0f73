// Filters of sequences. The other filters, and the table of apply_filter(), are in src/text/jinja/run/filter.cc.
#pragma once

#include "src/text/jinja/run/call.h"

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
// select, reject, selectattr, rejectattr: keeps the elements for which a test is true (`keep`) or false.
Value filter_select(Run& run, const Value& v, const Arguments& a, bool by_attribute, bool keep);
Value filter_sort(Run& run, const Value& v, const Arguments& a);
Value filter_string(Run& run, const Value& v, const Arguments& a);
Value filter_sum(Run& run, const Value& v, const Arguments& a);
Value filter_unique(Run& run, const Value& v, const Arguments& a);

}  // namespace mneme::jinja
