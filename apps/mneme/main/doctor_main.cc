#include <string_view>

#include "apps/mneme/doctor/doctor_commands.h"
#include "apps/mneme/program.h"

// `mneme-doctor` is `mneme doctor`, `mneme-doctor plan` is `mneme plan`.
int main(int argc, char** argv) {
  const int plan = argc > 1 && std::string_view(argv[1]) == "plan" ? 1 : 0;
  return mneme::cli::run_command(plan == 1 ? "plan" : "doctor", argc - plan, argv + plan,
                                 {.doctor = &mneme::cli::add_doctor, .plan = &mneme::cli::add_plan});
}
