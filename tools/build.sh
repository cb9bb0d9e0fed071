# shellcheck shell=bash
# build.sh - ./tandem build.

command_build() {
    need_packages "${PACKAGES_BUILD[@]}"
    local preset
    for preset in "${@:-release}"; do
        case $preset in
        release) ;;
        dev | asan | tsan | coverage) need_packages libcmocka-dev ;;
        fuzz) need_packages libcmocka-dev "${PACKAGES_FUZZ[@]}" ;;
        *) die "there is no preset $preset; the presets are release, dev, asan, tsan, coverage and fuzz" ;;
        esac
        build "$preset"
    done
}
