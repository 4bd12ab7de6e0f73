// An OpenAI-compatible server: `server MODEL [PORT]`, until Ctrl-C.
#include <mneme/server.h>

#include <exception>
#include <iostream>
#include <string>

int main(int argc, char** argv) try {
  if (argc < 2) throw mneme::Error(mneme::ErrorKind::kOption, "usage: server MODEL [PORT]");
  const auto port = static_cast<std::uint16_t>(argc > 2 ? std::stoi(argv[2]) : 8000);
  mneme::Server server(argv[1], {.port = port});
  std::cout << "listening on " << server.url() << std::endl;
  server.run();
} catch (const std::exception& e) {
  std::cerr << "server: " << e.what() << "\n";
  return 2;
}
