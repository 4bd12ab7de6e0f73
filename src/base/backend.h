// Registry of optional implementations: a table of functions (Row) registers itself when its object file is linked;
// callers look it up and get null where it was not built.
//
//   // x_cuda.cc
//   MNEME_REGISTER_BACKEND(x_cuda, XBackend, (XBackend{.run = &run_x_cuda}));
//   // x.cc
//   if (const XBackend* x = Backend<XBackend>::find()) x->run();
//
// Nothing else refers to the registering object, so the linker would drop it from a static library.
// mneme_backend(ROOM x_cuda) in CMake forces it in for every target that links the room.
#pragma once

namespace mneme {

template <class Entry>
class Backend {
 public:
  // The registered row (static storage), or null: not built.
  static const Entry* find() { return row(); }
  static bool add(const Entry* added) {
    row() = added;
    return true;
  }

 private:
  // Function-local static: registration before main() must not depend on the order of initialisation.
  static const Entry*& row() {
    static const Entry* registered = nullptr;
    return registered;
  }
};

}  // namespace mneme

// Registers a row. Use at namespace scope of mneme, once a name.
#define MNEME_REGISTER_BACKEND(name, Entry, ...) \
  extern "C" {                                   \
  bool mneme_backend_##name = [] {               \
    static const Entry row = __VA_ARGS__;        \
    return ::mneme::Backend<Entry>::add(&row);   \
  }();                                           \
  }                                              \
  static_assert(true, "a semicolon follows")
