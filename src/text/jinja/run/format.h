// Python's two string formats: "%s of %d" % (a, b) and "{} of {}".format(a, b).
#pragma once

#include "src/text/jinja/run/call.h"
#include "src/text/jinja/value/value.h"

namespace mneme::jinja {

// %s %r %d %i %f %e %g %x %X %o %c with flags, width and precision.
//
// Errors  kRequest: other conversions, values of a wrong type, too few or too many values.
Value percent_format(Run& run, const Text& format, const Value& values);

// {} {0} {name} with !s and !r; no attribute access.
//
// Errors  kRequest: other fields, a field without a value.
Value brace_format(Run& run, const Text& format, const Arguments& values);

}  // namespace mneme::jinja
