// The module mneme._core: what Python calls of the library. Python code beside it gives it names and types.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <thread>

#include "apps/mneme/bench/bench_commands.h"
#include "apps/mneme/doctor/doctor_commands.h"
#include "apps/mneme/eval/eval_commands.h"
#include "apps/mneme/program.h"
#include "apps/mneme/serve/serve_command.h"
#include "mneme/mneme.h"
#include "python/src/engine.h"
#include "python/src/gil.h"

namespace mneme::python {
namespace {

using nb::literals::operator""_a;

// mneme.Error, which Python defines, for what the library throws.
void raise_error(const Error& e) {
  const Inside inside;  // Python's code may hand the GIL to a thread that ends the interpreter
  const nb::object type = nb::module_::import_("mneme._error").attr("Error");
  const nb::object error = type(e.what(), error_kind_name(e.kind()));
  PyErr_SetObject(type.ptr(), error.ptr());
}

// The interpreter is about to end: calls that were woken by the end of their engines leave first.
bool drain(double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  // Looked at with the GIL: a call that leaves and raises an error is not counted for a moment, and holds it then.
  while (g_inside > 0 && std::chrono::steady_clock::now() < until) {
    const nb::gil_scoped_release release;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return g_inside == 0;
}

int run_program(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = arguments;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const nb::gil_scoped_release release;
  return cli::run_program(static_cast<int>(words.size()), argv.data(),
                          {.serve = &cli::add_serve,
                           .eval = &cli::add_eval,
                           .bench = &cli::add_bench,
                           .doctor = &cli::add_doctor,
                           .plan = &cli::add_plan});
}

}  // namespace
}  // namespace mneme::python

NB_MODULE(_core, m) {
  namespace py = mneme::python;
  m.doc() = "The engine under mneme's Python classes; not an interface of its own.";
  nanobind::register_exception_translator(
      [](const std::exception_ptr& p, void*) {
        try {
          std::rethrow_exception(p);
        } catch (const mneme::Error& e) {
          py::raise_error(e);
        }
      },
      nullptr);
  py::bind_stats(m);
  py::bind_recipe(m);
  py::bind_engine(m);
  py::bind_session(m);
  m.def("version", [] { return std::string(mneme::version()); });
  m.def("drain", &py::drain, nanobind::arg("seconds"));
  m.def("run_program", &py::run_program, nanobind::arg("arguments"));
}
