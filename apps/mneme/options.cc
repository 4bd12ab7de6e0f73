#include "apps/mneme/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <utility>

#include "src/base/ascii.h"

namespace mneme::cli {
namespace {

// The whole of `text` as a T.
template <typename T>
bool parse(const std::string& text, T& value) {
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end;
}

// A validator whose refusal is its only word: without a description it leaves the help alone.
CLI::Validator quiet(std::function<std::string(std::string&)> check) {
  return CLI::Validator(std::move(check), "");
}

}  // namespace

CLI::Validator whole_number(std::int64_t low, std::int64_t high) {
  return quiet([low, high](std::string& text) {
    std::int64_t value = 0;
    if (parse(text, value) && value >= low && value <= high) return std::string();
    return fmt::format("expected an integer from {} to {}, found \"{}\"", low, high, text);
  });
}

std::optional<double> parse_size(std::string_view text, SizeOf of) {
  constexpr std::string_view kPrefixes = "kmgt";
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [unit_begin, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
  const std::string unit = ascii_lower({unit_begin, static_cast<std::size_t>(end - unit_begin)});
  if (of == SizeOf::kTokens) {
    const double factor = unit.empty() ? 1 : unit == "k" ? 1 << 10 : unit == "m" ? 1 << 20 : 0;
    const double tokens = value * factor;
    return factor == 0 || tokens != std::floor(tokens) ? std::nullopt : std::optional(tokens);
  }
  if (unit.empty()) return of == SizeOf::kBytes ? value : value * (1 << 30);
  if (unit == "b") return value;
  const std::size_t power = kPrefixes.find(unit[0]);
  const std::string_view rest = std::string_view(unit).substr(1);
  if (power == kPrefixes.npos || (!rest.empty() && rest != "b" && rest != "i" && rest != "ib")) return std::nullopt;
  return value * std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
}

namespace {

CLI::Validator whole_size(std::int64_t low, std::int64_t high, SizeOf of, const char* examples) {
  return quiet([=](std::string& text) {
    const std::optional<double> n = parse_size(text, of);
    if (!n || *n < static_cast<double>(low) || *n > static_cast<double>(high))
      return fmt::format("expected an integer from {} to {}, {}, found \"{}\"", low, high, examples, text);
    text = std::to_string(static_cast<std::int64_t>(*n));
    return std::string();
  });
}

}  // namespace

CLI::Validator tokens(std::int64_t low, std::int64_t high) {
  return whole_size(low, high, SizeOf::kTokens, "as in 32768, 128K or 1M");
}

CLI::Validator bytes(std::int64_t low, std::int64_t high) {
  return whole_size(low, high, SizeOf::kBytes, "as in 1048576, 512KiB or 64MB");
}

CLI::Validator gib(double low, double high) {
  return quiet([low, high](std::string& text) {
    const std::optional<double> bytes = parse_size(text, SizeOf::kMemory);
    const double gib = bytes.value_or(-1) / (1 << 30);
    if (!bytes || gib < low || gib > high)
      return fmt::format("expected memory from {} to {} GiB, as in 16, 16GiB, 16GB or 512MiB, found \"{}\"", low, high,
                         text);
    text = fmt::format("{}", gib);
    return std::string();
  });
}

CLI::Validator number(double low, double high) {
  return quiet([low, high](std::string& text) {
    double value = 0;
    if (parse(text, value) && std::isfinite(value) && value >= low && value <= high) return std::string();
    std::string range = "a number";
    if (std::isfinite(low) && high < std::numeric_limits<float>::max()) {
      range += fmt::format(" from {} to {}", low, high);
    } else if (std::isfinite(low)) {
      range += fmt::format(", {} or more", low);
    }
    return fmt::format("expected {}, found \"{}\"", range, text);
  });
}

CLI::Validator one_of(std::vector<std::string> words) {
  return quiet([words = std::move(words)](std::string& text) {
    if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
    return fmt::format("expected {}, found \"{}\"", fmt::join(words, " or "), text);
  });
}

CLI::Validator identifier() {
  return quiet([](std::string& text) {
    const auto letter = [](char c) { return to_lower(c) >= 'a' && to_lower(c) <= 'z'; };
    const bool right = !text.empty() && letter(text[0]) && std::all_of(text.begin(), text.end(), [&](char c) {
      return letter(c) || c == '_' || (c >= '0' && c <= '9');
    });
    return right ? "" : fmt::format("expected letters, digits and '_' that begin with a letter, found \"{}\"", text);
  });
}

CLI::Validator not_empty() {
  return quiet([](std::string& text) { return text.empty() ? std::string("expected a text, found none") : ""; });
}

namespace {

std::string variable_of(const std::string& option) {
  std::string variable = "MNEME_";
  for (const char c : option) variable += c == '-' ? '_' : to_upper(c);
  return variable;
}

std::string value_of(const std::string& variable) {
  const char* const value = std::getenv(variable.c_str());
  return value == nullptr ? std::string() : value;
}

// The variable that is set, of the first of the option's names that has one; of the first name where none has.
std::string variable_for(const CLI::Option& option) {
  const std::vector<std::string>& names = option.get_lnames();
  const std::vector<std::string>& negations = option.get_fnames();  // --no-...: its variable would say the opposite
  for (const std::string& name : names) {
    const bool negation = std::find(negations.begin(), negations.end(), name) != negations.end();
    if (std::string variable = variable_of(name); !negation && !value_of(variable).empty()) return variable;
  }
  return variable_of(names.front());
}

}  // namespace

CLI::Option* add_gib(CLI::App& c, const char* name, std::int64_t& bytes, const char* help) {
  return c
      .add_option_function<double>(
          name, [&bytes](double gib) { bytes = std::llround(gib * (1 << 30)); }, help)
      ->type_name("SIZE")
      ->transform(gib(0.0001, 1e6));
}

void name_environment(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    const std::vector<std::string>& names = option->get_lnames();
    if (names.empty() || names.front() == "help" || names.front() == "version") continue;
    const std::string variable = variable_for(*option);
    option->envname(variable);
    // Kubernetes sets NAME_PORT for every service, so one that is called "mneme" would keep the server from starting.
    if (names.front() != "port" || !value_of(variable).starts_with("tcp://")) continue;
    option->envname("");
    command.preparse_callback([variable](std::size_t) {
      fmt::print(stderr,
                 "mneme: warning: {}=\"{}\" is ignored: Kubernetes sets it for a service of this name; --port names "
                 "the port\n",
                 variable, value_of(variable));
    });
  }
  for (CLI::App* sub : command.get_subcommands({})) name_environment(*sub);
}

}  // namespace mneme::cli
