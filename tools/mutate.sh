# shellcheck shell=bash
# mutate.sh - ./tandem mutate.

# mutate FOLDER [OPTIONS]: see tools/mutate.py.
command_mutate() {
    need_packages "${PACKAGES_BUILD[@]}" "${PACKAGES_RUN[@]}" "${PACKAGES_TEST[@]}"
    if command -v ccache >/dev/null; then export CMAKE_C_COMPILER_LAUNCHER=ccache; fi
    /usr/bin/python3 tools/mutate.py "$@"
}
