// Numbers, digit by digit.
#include "src/text/grammar/json_matcher.h"

namespace mneme {
namespace {

bool is_digit(std::uint8_t b) {
  return b >= '0' && b <= '9';
}

}  // namespace

// In this phase the number may end, continue, or both.
void JsonMatcher::put_number(Thread t, Phase phase, Threads& to) const {
  const JsonNode& n = node(t);
  t.top.phase = phase;
  if (!n.range.can_become(t.top.digits)) return;
  const bool may_end =
      phase == Phase::kZero || phase == Phase::kWhole || phase == Phase::kFraction || phase == Phase::kExponent;
  if (may_end && n.range.holds(t.top.digits)) finish(t, to);
  to.push_back(std::move(t));
}

void JsonMatcher::number(Thread t, std::uint8_t byte, Threads& to) const {
  const JsonNode& n = node(t);
  Frame& f = t.top;
  NumberRange::Digits& d = f.digits;
  const Phase phase = f.phase;
  const bool digit = is_digit(byte);
  const unsigned value = byte - '0';
  const auto add_digit = [&](int& places) {
    d.value = d.value * 10 + value;
    ++places;
  };
  const bool exponent = (byte == 'e' || byte == 'E') && !n.integer && !n.range.bounded();
  switch (phase) {
    case Phase::kSign:
      if (!digit) return;
      add_digit(d.whole);
      return put_number(std::move(t), byte == '0' ? Phase::kZero : Phase::kWhole, to);
    case Phase::kWhole:
      if (digit) {
        if (d.whole == NumberRange::kMaxWhole) return;
        add_digit(d.whole);
        return put_number(std::move(t), phase, to);
      }
      [[fallthrough]];
    case Phase::kZero:
      if (byte == '.' && !n.integer) {
        d.point = true;
        return put_number(std::move(t), Phase::kPoint, to);
      }
      if (exponent) return put_number(std::move(t), Phase::kE, to);
      return;
    case Phase::kPoint:
    case Phase::kFraction:
      if (digit) {
        // Without bounds the value does not matter; 24 digits exceed a double's precision.
        if (d.fraction == (n.range.bounded() ? NumberRange::kMaxFraction : 24)) return;
        if (n.range.bounded()) {
          add_digit(d.fraction);
        } else {
          ++d.fraction;
        }
        return put_number(std::move(t), Phase::kFraction, to);
      }
      if (exponent && phase == Phase::kFraction) return put_number(std::move(t), Phase::kE, to);
      return;
    case Phase::kE:
      if (byte == '+' || byte == '-') return put_number(std::move(t), Phase::kESign, to);
      [[fallthrough]];
    case Phase::kESign:
    case Phase::kExponent:
      if (!digit || f.count * 10 + value > NumberRange::kMaxExponent || f.at == 4) return;
      f.count = f.count * 10 + value;
      ++f.at;
      return put_number(std::move(t), Phase::kExponent, to);
    default:
      return;
  }
}

}  // namespace mneme
