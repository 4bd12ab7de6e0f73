// Where models come from and where they are kept, by the variables of huggingface_hub.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace mneme::hub {

struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // without a slash at its end
  std::string token;                                // sent to the endpoint alone
  std::filesystem::path cache;                      // the folder of models--OWNER--NAME
  bool offline = false;
  std::filesystem::path ca_file;  // certificates in place of the system's; empty: those

  int tries = 5;             // in a row without a byte of progress
  double retry_seconds = 1;  // before the first repetition; doubled for each further one
  double longest_wait_seconds = 300;
  double connect_seconds = 20;
  double idle_seconds = 60;                                 // without a byte before a transfer counts as broken off
  std::int64_t max_request_bytes = std::int64_t{32} << 30;  // CDNs refuse answers of more than 50 GB
};

// HF_ENDPOINT; HF_TOKEN, else the file that `hf auth login` writes (HF_TOKEN_PATH); HF_HUB_CACHE, else the folder hub
// of HF_HOME, else ~/.cache/huggingface/hub; HF_HUB_OFFLINE; REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE or SSL_CERT_FILE.
//
// Errors  kOption: an endpoint that is no http:// or https:// address, a token with line ends, no folder for the cache.
HubSettings hub_settings_from_environment();

}  // namespace mneme::hub
