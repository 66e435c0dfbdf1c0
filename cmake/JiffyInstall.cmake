# What `cmake --install` copies, and the package that find_package(jiffy) finds.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/jiffy)

install(
  TARGETS jiffy_runtime
  EXPORT jiffyTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT jiffyTargets NAMESPACE jiffy:: DESTINATION ${package_dir})

configure_package_config_file(cmake/jiffyConfig.cmake.in ${PROJECT_BINARY_DIR}/jiffyConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/jiffyConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/jiffyConfig.cmake ${PROJECT_BINARY_DIR}/jiffyConfigVersion.cmake
        DESTINATION ${package_dir})

if(TARGET jiffy)
  # The installed program finds a shared jiffy beside itself, wherever the prefix is moved.
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(jiffy PROPERTIES INSTALL_RPATH $ORIGIN/${bin_to_lib})
  install(TARGETS jiffy RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(FILES tools/jiffy-gdb.py DESTINATION ${CMAKE_INSTALL_DATADIR}/jiffy)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
